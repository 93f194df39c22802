// Asks with net/http, as tests/integration/http_clients.rs has it: BASE, then lines of PATH TYPE BYTES on standard input.
// For each: the status of a POST of so many blanks, and of GET /livez after it with the same client.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	client := &http.Client{Timeout: time.Minute}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var path, kind string
		var size int
		if _, err := fmt.Sscan(lines.Text(), &path, &kind, &size); err != nil {
			panic(err)
		}
		body := bytes.Repeat([]byte(" "), size)
		// A reader of a kind that net/http does not know has no length.
		for name, reader := range map[string]io.Reader{"net/http": bytes.NewReader(body), "net/http,chunked": io.MultiReader(bytes.NewReader(body))} {
			outcome, err := ask(client, os.Args[1], path, kind, reader)
			if err != nil {
				outcome = "error " + strings.ReplaceAll(err.Error(), " ", "_")
			}
			fmt.Println(name, path, kind, size, outcome)
		}
	}
}

func ask(client *http.Client, base, path, kind string, body io.Reader) (string, error) {
	answer, err := client.Post(base+path, kind, body)
	if err != nil {
		return "", err
	}
	if err := drop(answer); err != nil {
		return "", err
	}
	after, err := client.Get(base + "/livez")
	if err != nil {
		return "", err
	}
	return fmt.Sprint(answer.StatusCode, " ", after.StatusCode), drop(after)
}

func drop(answer *http.Response) error {
	_, err := io.Copy(io.Discard, answer.Body)
	return errorsOf(err, answer.Body.Close())
}

func errorsOf(first, second error) error {
	if first != nil {
		return first
	}
	return second
}
