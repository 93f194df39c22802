// Cancel an order in 30 minutes unless it is paid.
//
// PUNCTUAL_URL is a node (http://127.0.0.1:7070), TOPIC where the record goes (demo).
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"time"

	punctual "punctual.example/client"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func draft(order int, delay time.Duration) punctual.Draft {
	key := fmt.Sprintf("order-%d", order)
	payload := map[string]int{"cancel": order}
	return punctual.Draft{Name: "cancel-" + key, Key: &key, Delay: delay, Payload: payload}
}

func main() {
	ctx, topic := context.Background(), cmp.Or(os.Getenv("TOPIC"), "demo")
	client := must(punctual.New(cmp.Or(os.Getenv("PUNCTUAL_URL"), "http://127.0.0.1:7070")))
	first := must(client.Submit(ctx, topic, draft(17, 30*time.Minute)))
	fmt.Println("cancel-order-17:", first.State)
	// Again, as after a crash: the name is known, so this makes no second task.
	again := must(client.Submit(ctx, topic, draft(17, 30*time.Minute)))
	known := "new,"
	if again.ID == first.ID {
		known = "known already,"
	}
	fmt.Println("cancel-order-17:", known, again.State)
	// It was paid.
	fmt.Println("cancel-order-17:", must(client.Cancel(ctx, topic, "cancel-order-17")).Verdict)
	other := must(client.Submit(ctx, topic, draft(18, 30*time.Minute)))
	fmt.Println("cancel-order-18:", other.State)
	// This customer has less time.
	must(client.Replace(ctx, topic, "cancel-order-18", draft(18, time.Second)))
	fmt.Println("cancel-order-18: rescheduled")
}
