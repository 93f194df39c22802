package punctual

import "sync"

// Headers of each record.
const (
	// HeaderTaskID is the header with the id of the task.
	HeaderTaskID = "punctual-task-id"
	// HeaderDueAt is the header with the due time in milliseconds since the epoch.
	HeaderDueAt = "punctual-due-at"
	// HeaderAttempt is the header with the number of the attempt of a tracked task.
	HeaderAttempt = "punctual-attempt"
)

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
// that fails is not remembered. Records of one task are on one partition, so only one goroutine has
// them.
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
