package retry

import (
	"fmt"
	"strings"
)

// String returns a failure in a few words, for example "app, exit code 3".
func (f Failure) String() string {
	words := []string{string(f.Category)}
	if f.Category == "" {
		words[0] = string(App)
	}
	switch {
	case f.Signal != 0:
		words = append(words, fmt.Sprintf("signal %d", f.Signal))
	case f.ExitCode != 0:
		words = append(words, fmt.Sprintf("exit code %d", f.ExitCode))
	}
	if f.Permanent {
		words = append(words, "permanent")
	}
	return strings.Join(words, ", ")
}

// Text says which rule decided about the latest failure, and what follows. over: the instance has no
// attempts left. failures counts its failures in a row. policy: the group has a retry policy.
func (r *Record) Text(policy, over bool, failures int32) string {
	rule := "failure (" + r.Last.String() + ")"
	switch {
	case r.Rule > 0:
		rule = fmt.Sprintf("retry.rules[%d] matches (%s)", r.Rule-1, r.Last)
	case policy:
		rule = "no retry rule matches (" + r.Last.String() + ")"
	}
	if over {
		return rule + ": no further attempt"
	}
	text := fmt.Sprintf("%s: retry %d of %d", rule, failures, r.Attempts)
	if r.MemoryBytes > 0 {
		text += fmt.Sprintf(", with %d MiB of memory", r.MemoryBytes>>20)
	}
	if r.Leave {
		text += ", in another region"
	}
	return text
}
