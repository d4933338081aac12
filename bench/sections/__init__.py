"""What is measured, a module a section; each has `run(scene)`."""
