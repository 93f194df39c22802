// Parses answers with a generated client: parse FILE. Prints the number of parsed answers.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"

	client "punctual.test/client"
)

// Go finds no type by its name. These are the schemas of answers.
var types = map[string]func() any{
	"BatchAnswer":     func() any { return &client.BatchAnswer{} },
	"Cancelled":       func() any { return &client.Cancelled{} },
	"CancelledMany":   func() any { return &client.CancelledMany{} },
	"Cluster":         func() any { return &client.Cluster{} },
	"Counts":          func() any { return &client.Counts{} },
	"Dropped":         func() any { return &client.Dropped{} },
	"Health":          func() any { return &client.Health{} },
	"Heeded":          func() any { return &client.Heeded{} },
	"Moved":           func() any { return &client.Moved{} },
	"MovedMany":       func() any { return &client.MovedMany{} },
	"OpenApiDocument": func() any { return &client.OpenApiDocument{} },
	"OutcomesAnswer":  func() any { return &client.OutcomesAnswer{} },
	"Page":            func() any { return &client.Page{} },
	"Callback":        func() any { return &client.Callback{} },
	"Popped":          func() any { return &client.Popped{} },
	"Problem":         func() any { return &client.Problem{} },
	"Redriven":        func() any { return &client.Redriven{} },
	"Backfill":        func() any { return &client.Backfill{} },
	"Schedule":        func() any { return &client.Schedule{} },
	"Schedules":       func() any { return &client.Schedules{} },
	"Task":            func() any { return &client.Task{} },
	"Topic":           func() any { return &client.Topic{} },
	"Topics":          func() any { return &client.Topics{} },
	"WhoAmI":          func() any { return &client.WhoAmI{} },
}

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	lines, count := bufio.NewScanner(file), 0
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var one struct {
			Schema string
			Answer json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			log.Fatal(err)
		}
		make, known := types[one.Schema]
		if !known {
			log.Fatalf("add the schema %s to parse.go", one.Schema)
		}
		if err := json.Unmarshal(one.Answer, make()); err != nil {
			log.Fatalf("%v in %s", err, lines.Text())
		}
		count++
	}
	if lines.Err() != nil {
		log.Fatal(lines.Err())
	}
	fmt.Println(count)
}
