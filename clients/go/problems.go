package punctual

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Problem is a refused request. Nothing was done, and the same request is refused again.
type Problem struct {
	// Slug is the last part of the type, such as unknown-topic. Decide by it. Empty if a proxy has
	// refused the request.
	Slug   string `json:"-"`
	Type   string `json:"type"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Field is the wrong field, such as due_at.
	Field string `json:"field"`
	// Task is the task that could not be replaced.
	Task *Task `json:"task"`
	// CurrentID is the id of the task that the name has, if a condition does not hold.
	CurrentID string `json:"current_id"`
}

func (problem *Problem) Error() string {
	if problem.Slug == "" {
		return fmt.Sprintf("status %d: %s", problem.Status, problem.Detail)
	}
	return problem.Slug + ": " + problem.Detail
}

// NoAnswer says that no attempt got an answer in time.
type NoAnswer struct {
	Call string
	// IsUnknown is true if an attempt may have taken effect. False: nothing was done.
	IsUnknown bool
	// Err is the failure of the last attempt.
	Err error
}

func (failure *NoAnswer) Error() string { return fmt.Sprintf("%s: %v", failure.Call, failure.Err) }
func (failure *NoAnswer) Unwrap() error { return failure.Err }

const problemPrefix = "urn:punctual:problem:"

func problemOf(body []byte) *Problem {
	problem := &Problem{}
	if err := json.Unmarshal(body, problem); err != nil {
		problem.Detail = err.Error()
	}
	problem.Slug = strings.TrimPrefix(problem.Type, problemPrefix)
	return problem
}

// isOfNode tells the problem of a node from the answer of a proxy. A proxy may not know what was
// done.
func (problem *Problem) isOfNode() bool { return strings.HasPrefix(problem.Type, problemPrefix) }

// unknown is the problem of a part of a call that may have been done by an attempt that failed.
func unknown(failure error) *Problem {
	return &Problem{
		Slug:   "outcome-unknown",
		Type:   problemPrefix + "outcome-unknown",
		Status: http.StatusServiceUnavailable,
		Detail: failure.Error(),
	}
}

// wasPerhapsDone tells of the problems that do not say whether the request was done.
func (problem *Problem) wasPerhapsDone() bool {
	return problem.Status >= 500 && isRepeated(problem.Status) && !problem.isNotDone()
}

// isFinal tells of the problem with status 429 that does not pass: a token or a host is wrong.
func (problem *Problem) isFinal() bool { return problem.Slug == "denied-too-often" }

// isNotDone tells of the problems with status 503 that prove that nothing was done.
func (problem *Problem) isNotDone() bool {
	switch problem.Slug {
	case "busy", "draining", "unavailable", "not-ready":
		return true
	}
	return false
}
