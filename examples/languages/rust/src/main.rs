//! One hand-off and one refusal, in Rust. Usage: pd-handoff-example http://HOST:PORT
use std::time::Duration;

use prost::Message;
use tonic::transport::Channel;

pub mod google {
    pub mod rpc {
        tonic::include_proto!("google.rpc");
    }
}
pub mod pd_handoff {
    pub mod v1 {
        tonic::include_proto!("pd_handoff.v1");
    }
}
use pd_handoff::v1 as pd;
use pd_handoff::v1::metadata_store_client::MetadataStoreClient;

/// Why the store refused; empty when gRPC itself failed.
fn reason_of(status: &tonic::Status) -> String {
    let Ok(details) = google::rpc::Status::decode(status.details()) else {
        return String::new();
    };
    for detail in details.details {
        if detail.type_url.ends_with("/google.rpc.ErrorInfo") {
            if let Ok(info) = google::rpc::ErrorInfo::decode(detail.value.as_slice()) {
                return info.reason;
            }
        }
    }
    String::new()
}

fn key(room: u64) -> Option<pd::HandoffKey> {
    Some(pd::HandoffKey { namespace: "rust".into(), room: Some(room), sample: 0 })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = std::env::args().nth(1).expect("TARGET");
    // A Get waits for up to max_wait; its deadline has to be longer.
    let channel = Channel::from_shared(target)?.timeout(Duration::from_secs(20)).connect().await?;
    let mut store = MetadataStoreClient::new(channel);

    let room = u64::MAX; // every 64-bit value is a room
    let token = pd::SampledToken { token_id: Some(42), logprob: Some(-0.5), ..Default::default() };
    store
        .put(pd::PutRequest {
            key: key(room),
            reserve: Some(pd::ReserveRequest { owner: "prefill-1".into(), ..Default::default() }),
            record: Some(pd::HandoffRecord { tokens: vec![token], ..Default::default() }),
            ..Default::default()
        })
        .await?;
    let got = store
        .get(pd::GetRequest {
            key: key(room),
            reader_id: "decode-1".into(),
            consume: true,
            max_wait: Some(prost_types::Duration { seconds: 10, nanos: 0 }),
            ..Default::default()
        })
        .await?
        .into_inner();
    println!("{}", got.record.unwrap_or_default().tokens[0].token_id.unwrap_or_default());

    let absent = pd::GetRequest { key: key(8), reader_id: "decode-1".into(), ..Default::default() };
    if let Err(status) = store.get(absent).await {
        println!("{}", reason_of(&status));
    }
    Ok(())
}
