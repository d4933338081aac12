// One hand-off and one refusal, in Go. Usage: main TARGET
package main

import (
	"context"
	"fmt"
	"log"
	"math"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pd "example/gen/pd_handoff/v1"
)

// reasonOf says why the store refused; empty when gRPC itself failed.
func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}

func main() {
	// TLS: grpc.WithTransportCredentials(credentials.NewTLS(...)) instead.
	conn, err := grpc.Dial(os.Args[1], grpc.WithInsecure())
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	store := pd.NewMetadataStoreClient(conn)
	// A Get waits for up to max_wait; its deadline has to be longer.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()

	room := uint64(math.MaxUint64) // every 64-bit value is a room
	key := &pd.HandoffKey{Namespace: "go", Room: &room}
	_, err = store.Put(ctx, &pd.PutRequest{
		Key:     key,
		Reserve: &pd.ReserveRequest{Owner: "prefill-1"},
		Record:  &pd.HandoffRecord{Tokens: []*pd.SampledToken{{TokenId: proto.Int32(42), Logprob: proto.Float32(-0.5)}}},
	})
	if err != nil {
		log.Fatalf("%s: %v", reasonOf(err), err)
	}
	got, err := store.Get(ctx, &pd.GetRequest{
		Key: key, ReaderId: "decode-1", Consume: true, MaxWait: durationpb.New(10 * time.Second),
	})
	if err != nil {
		log.Fatalf("%s: %v", reasonOf(err), err)
	}
	fmt.Println(got.Record.Tokens[0].GetTokenId())

	other := uint64(8)
	_, err = store.Get(ctx, &pd.GetRequest{Key: &pd.HandoffKey{Namespace: "go", Room: &other}, ReaderId: "decode-1"})
	fmt.Println(reasonOf(err))
}
