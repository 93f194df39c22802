// Handles each task once.
//
// Usage: consume [RECORDS]. Ends after that many records; without a number it runs for ever.
// KAFKA is the broker (127.0.0.1:9092), TOPIC the topic of the records (demo).
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"
	punctual "punctual.example/client"
)

func taskID(record *kgo.Record) string {
	for _, header := range record.Headers {
		if header.Key == punctual.HeaderTaskID {
			return string(header.Value)
		}
	}
	return ""
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

// consume handles records until none are left, or ctx ends. A negative number is for ever.
func consume(ctx context.Context, left int) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(cmp.Or(os.Getenv("KAFKA"), "127.0.0.1:9092")),
		kgo.ConsumerGroup(cmp.Or(os.Getenv("GROUP"), "orders-go")),
		kgo.ConsumeTopics(cmp.Or(os.Getenv("TOPIC"), "demo")),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	)
	if err != nil {
		return err
	}
	// Leaves the group at once. Otherwise the partitions wait until the session has ended.
	defer client.Close()
	// In production: a table with a unique key, written in the transaction of the task's work.
	once := punctual.NewOnce(100_000)
	for left != 0 {
		fetches := client.PollRecords(ctx, 100)
		if err := fetches.Err(); err != nil {
			return err
		}
		records := fetches.Records()
		if left > 0 && left < len(records) {
			records = records[:left]
		}
		for _, record := range records {
			isNew, err := once.Run(taskID(record), func() error {
				_, err := fmt.Printf("%s: %s\n", record.Key, record.Value)
				return err
			})
			if err != nil {
				return err
			}
			if !isNew {
				fmt.Printf("%s: seen before, skipped\n", record.Key)
			}
		}
		left -= len(records)
		// Also after a signal: the work is done.
		if err := client.CommitRecords(context.WithoutCancel(ctx), records...); err != nil {
			return err
		}
	}
	return nil
}
