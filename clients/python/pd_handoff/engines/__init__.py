"""What an inference engine calls. A package per engine with an adapter, a module per engine with a codec alone; none
imports its engine, or torch, before it is used."""
