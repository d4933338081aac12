"""What an inference engine calls. One package an engine; none imports its engine, or torch, before it is used."""
