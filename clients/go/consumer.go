package punctual

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Headers of each record.
const (
	// HeaderTaskID is the header with the id of the task.
	HeaderTaskID = "punctual-task-id"
	// HeaderDueAt is the header with the due time in milliseconds since the epoch.
	HeaderDueAt = "punctual-due-at"
	// HeaderAttempt is the header with the number of the attempt of a tracked task.
	HeaderAttempt = "punctual-attempt"
	// HeaderSignature is the header with the signature of a callback.
	HeaderSignature = "punctual-signature"
)

// Nodes take no shorter key.
const keyBytesMin = 24

// Once runs the work of each task once, for duplicates that arrive soon after the first record.
//
// It remembers tasks in memory, in this process. For exactly one effect, store the id of the task
// in the transaction of the work (docs/start/first-consumer.md).
type Once struct {
	mutex sync.Mutex
	seen  map[string]bool
	order []string // a ring of the ids in seen
	next  int
}

// NewOnce remembers that many tasks; 100,000 are enough for the usual duplicates.
func NewOnce(remembered int) *Once {
	return &Once{seen: make(map[string]bool), order: make([]string, remembered)}
}

// Run runs the work unless this task's work has succeeded before, and returns whether it ran. Work
// that fails is not remembered. Records of a task with a key are on one partition, so only one
// goroutine has them. A duplicate of a task without a key may be on another partition, which
// another goroutine reads at the same time.
func (once *Once) Run(taskID string, work func() error) (bool, error) {
	if taskID == "" { // a record of another producer
		return true, work()
	}
	once.mutex.Lock()
	isKnown := once.seen[taskID]
	once.mutex.Unlock()
	if isKnown {
		return false, nil
	}
	if err := work(); err != nil {
		return true, err
	}
	once.mutex.Lock()
	defer once.mutex.Unlock()
	delete(once.seen, once.order[once.next])
	once.seen[taskID], once.order[once.next] = true, taskID
	once.next = (once.next + 1) % len(once.order)
	return true, nil
}

// IsGenuine returns whether a node with one of these keys has sent the request of a callback. The
// keys are the lines of the node's file, the signature is the header, the topic is the one whose
// tasks the service takes, and the body is the bytes of the request. A signature older than maxAge
// is not genuine; five minutes are usual.
func IsGenuine(keys []string, signature, topic string, body []byte, maxAge time.Duration) bool {
	seconds, given := "", [][]byte{}
	for _, part := range strings.Split(signature, ",") {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "t":
			seconds = value
		case "v1":
			if digest, err := hex.DecodeString(value); err == nil {
				given = append(given, digest)
			}
		}
	}
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil || time.Since(time.Unix(at, 0)).Abs() > maxAge {
		return false
	}
	for _, key := range keys {
		secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(key))
		if err != nil || len(secret) < keyBytesMin {
			continue // Anybody could sign with an empty line or a comment.
		}
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(seconds + "\n" + topic + "\n"))
		mac.Write(body)
		digest := mac.Sum(nil)
		for _, value := range given {
			if hmac.Equal(digest, value) {
				return true
			}
		}
	}
	return false
}
