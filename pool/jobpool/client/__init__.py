from jobpool.client.jobs import Jobs as Jobs
