// Cancels the orders of tracked tasks, and answers for each attempt: it finishes, or it fails.
//
// Usage: finish [RECORDS]. Ends after that many records; without a number it runs for ever.
// PUNCTUAL_URL is the node (http://127.0.0.1:7070), KAFKA the broker (127.0.0.1:9092), TOPIC the
// topic of the records (demo).
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	punctual "punctual.example/client"
)

var errShopAway = errors.New("the shop does not answer")

// cancelUnlessPaid stands for the work. Here, the shop is away during the first attempt.
func cancelUnlessPaid(_ []byte, attempt int) error {
	if attempt == 1 {
		return errShopAway
	}
	return nil
}

func header(record *kgo.Record, name string) string {
	for _, header := range record.Headers {
		if header.Key == name {
			return string(header.Value)
		}
	}
	return ""
}

func handle(ctx context.Context, client *punctual.Client, record *kgo.Record) error {
	task := header(record, punctual.HeaderTaskID)
	attempt, err := strconv.Atoi(header(record, punctual.HeaderAttempt))
	if err != nil {
		return err
	}
	var answered punctual.Answered
	if failure := cancelUnlessPaid(record.Key, attempt); failure == nil {
		answered, err = client.Finish(ctx, task, attempt)
	} else {
		wait := time.Second
		answered, err = client.Fail(ctx, task, attempt, punctual.Failure{Reason: failure.Error(), RetryIn: &wait})
	}
	if err == nil {
		fmt.Printf("%s, attempt %d: %s\n", record.Key, attempt, answered.Verdict)
	}
	return err
}

func main() {
	left := -1
	if len(os.Args) > 1 {
		fmt.Sscan(os.Args[1], &left)
	}
	client, err := punctual.New(cmp.Or(os.Getenv("PUNCTUAL_URL"), "http://127.0.0.1:7070"))
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := kgo.NewClient(kgo.SeedBrokers(cmp.Or(os.Getenv("KAFKA"), "127.0.0.1:9092")), kgo.ConsumerGroup(cmp.Or(os.Getenv("GROUP"), "cancel-go")),
		kgo.ConsumeTopics(cmp.Or(os.Getenv("TOPIC"), "demo")), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	if err != nil {
		log.Fatal(err)
	}
	defer consumer.Close()
	for ctx := context.Background(); left != 0; {
		fetches := consumer.PollRecords(ctx, 1)
		if err := fetches.Err(); err != nil {
			log.Fatal(err)
		}
		// A poll may return without a record.
		for _, record := range fetches.Records() {
			left--
			if err := handle(ctx, client, record); err != nil {
				log.Fatal(err)
			}
			// In any case: Punctual makes the next attempt, not Kafka.
			if err := consumer.CommitRecords(ctx, record); err != nil {
				log.Fatal(err)
			}
		}
	}
}
