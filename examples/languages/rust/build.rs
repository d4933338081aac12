//! Generates the client from what `pd-handoff protos --out protos` writes.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    tonic_build::configure().build_server(false).compile_protos(
        &[
            "protos/pd_handoff/v1/metadata_store.proto",
            "protos/google/rpc/error_details.proto",
        ],
        &["protos"],
    )?;
    Ok(())
}
