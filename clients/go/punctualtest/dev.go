// Package punctualtest runs `punctual dev` for a test: a node with a broker, and a clock that the
// test sets.
package punctualtest

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	punctual "punctual.example/client"
)

// Server is a dev server that ends with its test.
type Server struct {
	t testing.TB
	// URL is the address of the REST API, Kafka the bootstrap server.
	URL, Kafka string
}

// The server answers after 10 minutes at the latest.
var caller = http.Client{Timeout: 610 * time.Second}

// Record is a published record. The one of Key and KeyBytes, and of Payload, PayloadText,
// PayloadBytes and Tombstone, is set that it has.
type Record struct {
	Key string `json:"key"`
	// KeyBytes is a key that is not UTF-8.
	KeyBytes []byte          `json:"key_base64"`
	Payload  json.RawMessage `json:"payload"`
	// PayloadText is text that is not JSON.
	PayloadText  *string `json:"payload_text"`
	PayloadBytes []byte  `json:"payload_base64"`
	Tombstone    bool    `json:"tombstone"`
	// Headers have text, or a map with base64 for bytes that are not UTF-8.
	Headers map[string]any `json:"headers"`
}

// Start starts a server with topics (NAME:PARTITIONS). The program is that of PUNCTUAL_BIN,
// otherwise punctual from the PATH.
func Start(t testing.TB, topics ...string) *Server {
	t.Helper()
	words := []string{"dev", "--port", "0", "--kafka-port", "0", "--json"}
	for _, topic := range topics {
		words = append(words, "--topic="+topic)
	}
	program := cmp.Or(os.Getenv("PUNCTUAL_BIN"), "punctual")
	if _, err := exec.LookPath(program); err != nil {
		t.Fatalf("no program `%s` on the PATH; set PUNCTUAL_BIN (%v)", program, err)
	}
	command := exec.Command(program, words...)
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "PUNCTUAL_") {
			command.Env = append(command.Env, variable)
		}
	}
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatalf("start punctual dev: %v", err)
	}
	t.Cleanup(func() {
		command.Process.Signal(syscall.SIGTERM)
		command.Wait()
	})
	server := &Server{t: t}
	line, err := bufio.NewReader(output).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, server)
	}
	if err != nil {
		t.Fatalf("punctual dev has ended, its errors are above: %v", err)
	}
	return server
}

// Client returns a client of the server.
func (server *Server) Client() *punctual.Client {
	server.t.Helper()
	client, err := punctual.New(server.URL)
	if err != nil {
		server.t.Fatal(err)
	}
	return client
}

// Advance lets time pass. It returns when every task that is due until then is published.
func (server *Server) Advance(span time.Duration) {
	server.t.Helper()
	if span != 0 && span.Abs() < time.Millisecond {
		server.t.Fatalf("advance %v, below a millisecond: give a unit, such as 5*time.Second", span)
	}
	body := fmt.Sprintf(`{"advance":"%dms"}`, span.Milliseconds())
	server.read(caller.Post(server.URL+"/dev/clock", "application/json", strings.NewReader(body)))
}

// Published returns the records of a topic, in order.
func (server *Server) Published(topic string) []Record {
	server.t.Helper()
	var answer struct{ Records []Record }
	body := server.read(caller.Get(server.URL + "/dev/published?topic=" + url.QueryEscape(topic)))
	if err := json.Unmarshal(body, &answer); err != nil {
		server.t.Fatal(err)
	}
	return answer.Records
}

func (server *Server) read(response *http.Response, err error) []byte {
	server.t.Helper()
	if err != nil {
		server.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	var problem punctual.Problem
	if err == nil && response.StatusCode != http.StatusOK && json.Unmarshal(body, &problem) == nil {
		server.t.Fatalf("%d: %s", response.StatusCode, problem.Detail)
	}
	if err != nil || response.StatusCode != http.StatusOK {
		server.t.Fatalf("%d: %s (%v)", response.StatusCode, body, err)
	}
	return body
}
