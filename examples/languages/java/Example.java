import com.google.protobuf.Any;
import com.google.protobuf.Duration;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.Status;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.NettyChannelBuilder;
import java.util.concurrent.TimeUnit;
import pdhandoff.v1.GetRequest;
import pdhandoff.v1.HandoffKey;
import pdhandoff.v1.HandoffRecord;
import pdhandoff.v1.MetadataStoreGrpc;
import pdhandoff.v1.PutRequest;
import pdhandoff.v1.ReserveRequest;
import pdhandoff.v1.SampledToken;

/** One hand-off and one refusal, in Java. Usage: Example TARGET */
public final class Example {
  private static final Metadata.Key<byte[]> DETAILS =
      Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER);

  /** Why the store refused; empty when gRPC itself failed. */
  static String reasonOf(StatusRuntimeException error) throws InvalidProtocolBufferException {
    byte[] details = error.getTrailers() == null ? null : error.getTrailers().get(DETAILS);
    if (details == null) return "";
    for (Any detail : Status.parseFrom(details).getDetailsList()) {
      if (detail.is(ErrorInfo.class)) return detail.unpack(ErrorInfo.class).getReason();
    }
    return "";
  }

  public static void main(String[] args) throws Exception {
    // TLS: without usePlaintext().
    ManagedChannel channel = NettyChannelBuilder.forTarget(args[0]).usePlaintext().build();
    try {
      // A Get waits for up to max_wait; its deadline has to be longer.
      var store = MetadataStoreGrpc.newBlockingStub(channel).withDeadlineAfter(20, TimeUnit.SECONDS);
      // Every 64-bit value is a room: -1L is 18446744073709551615. Print rooms with Long.toUnsignedString.
      var key = HandoffKey.newBuilder().setNamespace("java").setRoom(-1L).build();
      store.put(
          PutRequest.newBuilder()
              .setKey(key)
              .setReserve(ReserveRequest.newBuilder().setOwner("prefill-1"))
              .setRecord(
                  HandoffRecord.newBuilder()
                      .addTokens(SampledToken.newBuilder().setTokenId(42).setLogprob(-0.5f)))
              .build());
      var got =
          store.get(
              GetRequest.newBuilder()
                  .setKey(key)
                  .setReaderId("decode-1")
                  .setConsume(true)
                  .setMaxWait(Duration.newBuilder().setSeconds(10))
                  .build());
      System.out.println(got.getRecord().getTokens(0).getTokenId());
      try {
        var other = key.toBuilder().setRoom(8).build();
        store.get(GetRequest.newBuilder().setKey(other).setReaderId("decode-1").build());
      } catch (StatusRuntimeException error) {
        System.out.println(reasonOf(error));
      }
    } finally {
      channel.shutdownNow();
    }
  }
}
