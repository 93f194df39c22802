// Cancel an order in 30 minutes unless it is paid.
//
// PUNCTUAL_URL is a node (http://127.0.0.1:7070), TOPIC where the record goes (demo).
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"
)

var (
	base   = cmp.Or(os.Getenv("PUNCTUAL_URL"), "http://127.0.0.1:7070") + "/v1"
	topic  = cmp.Or(os.Getenv("TOPIC"), "demo")
	client = http.Client{Timeout: 5 * time.Second}
)

type object = map[string]any

// call repeats the request until there is an answer. Repeating is safe because every task here has a
// name: the same name makes no second task.
func call(method, path string, body object) (status int, answer object) {
	text, _ := json.Marshal(body) // strings and numbers: cannot fail
	for attempt := range 8 {
		pause := min(100*time.Millisecond<<attempt, 5*time.Second)
		request, err := http.NewRequest(method, base+path, bytes.NewReader(text))
		if err != nil {
			log.Fatal(err)
		}
		request.Header.Set("content-type", "application/json")
		if response, err := client.Do(request); err == nil {
			err = json.NewDecoder(response.Body).Decode(&answer)
			response.Body.Close()
			if err == nil && response.StatusCode != 429 && response.StatusCode != 503 {
				return response.StatusCode, answer
			}
			if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
				pause = time.Duration(seconds) * time.Second
			}
		}
		time.Sleep(pause)
	}
	log.Fatalf("%s %s: no answer", method, path)
	return
}

// does calls, and prints the result for the order's task.
func does(method, path string, order int, body object) {
	status, answer := call(method, path, body)
	said := answer["state"]
	switch {
	case method == http.MethodPut && status == 200:
		said = "rescheduled"
	case status == 200: // perhaps cancelled since: PUT schedules a new one
		said = fmt.Sprint("known already, ", answer["state"])
	}
	fmt.Printf("cancel-order-%d: %v\n", order, cmp.Or(answer["verdict"], said, answer["detail"]))
}

func submit(order int, delay string) {
	does("POST", "/tasks", order, object{"topic": topic, "name": fmt.Sprintf("cancel-order-%d", order), "delay": delay,
		"key": fmt.Sprintf("order-%d", order), "payload": object{"cancel": order}})
}

func reschedule(order int, delay string) {
	does("PUT", fmt.Sprintf("/topics/%s/tasks/cancel-order-%d", topic, order), order,
		object{"delay": delay, "key": fmt.Sprintf("order-%d", order), "payload": object{"cancel": order}})
}

func main() {
	submit(17, "30m")
	submit(17, "30m")                                                  // again, as after a lost answer
	does("DELETE", "/topics/"+topic+"/tasks/cancel-order-17", 17, nil) // it was paid
	submit(18, "30m")
	reschedule(18, "1s") // this customer has less time
}
