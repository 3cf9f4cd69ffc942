"""Libraries with native threads that an app uses at its import and again in its handlers.

`scripts/test --all` installs them by the extra `heavy`, but for PyTorch, whose wheel on PyPI has 539 MB.
"""

from __future__ import annotations

import pytest
from support.poolrig import Rig

APP = """
import jobpool

{use}

work()


@jobpool.handler
def again(ctx: jobpool.JobContext) -> None:
    work()
"""

USES = {
    "numpy": "import numpy\ndef work(): numpy.ones((700, 700)) @ numpy.ones((700, 700))",
    "sklearn": (
        "import numpy\nfrom sklearn.cluster import KMeans\n"
        "def work(): KMeans(3, n_init=1).fit(numpy.random.rand(3000, 3))"
    ),
    "torch": ("import torch\nnet = torch.nn.Linear(300, 300)\ndef work(): net(torch.ones(3000, 300)).sum().backward()"),
    "polars": (
        "import polars\ndef work():\n    polars.DataFrame({'a': list(range(99999))}).group_by('a').agg(polars.len())"
    ),
}
FORKED = {"numpy", "sklearn", "torch"}


@pytest.mark.more
@pytest.mark.parametrize("library", USES)
def test_it_works_at_the_import_and_in_each_child(rig: Rig, library: str) -> None:
    if library == "torch":
        pytest.importorskip(library, reason="PyTorch is too large for the extra `heavy`: install it to run this row")
    app = rig.directory / "parallel.py"
    app.write_text(APP.replace("{use}", USES[library]))
    rig.enqueue_many("again", [{}] * 4)
    pool = rig.run_pool("--until-empty", "--fail-on-dead", "--default-timeout", "60", app=app, OPENBLAS_NUM_THREADS="4")
    assert pool.wait() == 0
    imported_by_each = [entry for entry in pool.log() if "each child imports it" in entry["event"]]
    assert bool(imported_by_each) == (library not in FORKED)
    assert not [entry for entry in pool.log() if "native threads of the app's import are missing" in entry["event"]]
