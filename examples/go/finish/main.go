// Cancels the orders of tracked tasks, and answers for each attempt: it finishes, or it fails.
//
// Usage: finish [RECORDS]. Ends after that many records of tracked tasks; without a number it runs
// for ever. Other records are skipped. PUNCTUAL_URL is the node (http://127.0.0.1:7070), KAFKA the
// broker (127.0.0.1:9092), TOPIC the topic of the records (demo).
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
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

// handle answers for a record with the number of an attempt.
func handle(ctx context.Context, client *punctual.Client, record *kgo.Record, number string) error {
	task := header(record, punctual.HeaderTaskID)
	attempt, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	order := cmp.Or(string(record.Key), "-")
	var answered punctual.Answered
	if failure := cancelUnlessPaid(record.Key, attempt); failure == nil {
		answered, err = client.Finish(ctx, task, attempt)
	} else {
		wait := time.Second
		answered, err = client.Fail(ctx, task, attempt, punctual.Failure{
			Reason: failure.Error(), RetryIn: &wait,
		})
	}
	if err == nil {
		fmt.Printf("%s, attempt %d: %s\n", order, attempt, answered.Verdict)
	}
	return err
}

func main() {
	left := -1
	if len(os.Args) > 1 {
		var err error
		if left, err = strconv.Atoi(os.Args[1]); err != nil {
			log.Fatal(err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := consume(ctx, left); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// consume handles attempts until none are left, or ctx ends. A negative number is for ever.
func consume(ctx context.Context, left int) error {
	client, err := punctual.New(cmp.Or(os.Getenv("PUNCTUAL_URL"), "http://127.0.0.1:7070"))
	if err != nil {
		return err
	}
	consumer, err := kgo.NewClient(
		kgo.SeedBrokers(cmp.Or(os.Getenv("KAFKA"), "127.0.0.1:9092")),
		kgo.ConsumerGroup(cmp.Or(os.Getenv("GROUP"), "cancel-go")),
		kgo.ConsumeTopics(cmp.Or(os.Getenv("TOPIC"), "demo")),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	)
	if err != nil {
		return err
	}
	// Leaves the group at once. Otherwise the partitions wait until the session has ended.
	defer consumer.Close()
	for left != 0 {
		fetches := consumer.PollRecords(ctx, 1)
		if err := fetches.Err(); err != nil {
			return err
		}
		// A poll may return without a record.
		for _, record := range fetches.Records() {
			// Without a number, nobody waits for an answer: the task is not tracked, or the record
			// is of another producer.
			if number := header(record, punctual.HeaderAttempt); number != "" {
				left--
				if err := handle(ctx, client, record, number); err != nil {
					return err
				}
			}
			// In any case: Punctual makes the next attempt, not Kafka.
			if err := consumer.CommitRecords(context.WithoutCancel(ctx), record); err != nil {
				return err
			}
		}
	}
	return nil
}
