"""A prefill process hands its first tokens to a decode process, through a store process: `python -m examples.demo`."""
