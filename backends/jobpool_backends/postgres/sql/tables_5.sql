-- A run of it was begun and given back, or it was raised from the dead letters: it does not expire any more. This does
-- not rewrite the table: the default is kept beside it.
ALTER TABLE {schema}.messages ADD COLUMN IF NOT EXISTS begun boolean NOT NULL DEFAULT false;
