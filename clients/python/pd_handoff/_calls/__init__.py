"""Every call of the contract: its request, its retries and its answer. Private."""
