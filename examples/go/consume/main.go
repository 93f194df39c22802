// Handles each task once.   consume [RECORDS]   (for ever, unless told after how many records to end)
//
// KAFKA is the broker (127.0.0.1:9092), TOPIC where the records are (demo).
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A duplicate comes soon after the first: when a node was declared dead, or an acknowledgement was lost.
const remembered = 100_000

func taskID(record *kgo.Record) string {
	for _, header := range record.Headers {
		if header.Key == "punctual-task-id" {
			return string(header.Value)
		}
	}
	return ""
}

func main() {
	left := -1
	if len(os.Args) > 1 {
		fmt.Sscan(os.Args[1], &left)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(cmp.Or(os.Getenv("KAFKA"), "127.0.0.1:9092")), kgo.ConsumerGroup(cmp.Or(os.Getenv("GROUP"), "orders-go")),
		kgo.ConsumeTopics(cmp.Or(os.Getenv("TOPIC"), "demo")), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	seen := make(map[string]bool)                // in real life: a table with a unique key, written in the transaction of what the task does
	order, next := make([]string, remembered), 0 // which id is forgotten next
	for ctx := context.Background(); left != 0; {
		fetches := client.PollRecords(ctx, 100)
		if err := fetches.Err(); err != nil {
			log.Fatal(err)
		}
		records := fetches.Records()
		if left > 0 && left < len(records) {
			records = records[:left]
		}
		for _, record := range records {
			id := taskID(record)
			if seen[id] {
				fmt.Printf("%s: seen before, skipped\n", record.Key)
				continue
			}
			fmt.Printf("%s: %s\n", record.Key, record.Value)
			delete(seen, order[next])
			seen[id], order[next] = true, id
			next = (next + 1) % remembered
		}
		left -= len(records)
		if err := client.CommitRecords(ctx, records...); err != nil {
			log.Fatal(err)
		}
	}
}
