package ends

import (
	"fmt"
	"strings"
)

// Step is a step of a run that has ended.
type Step struct {
	Name string
	// Depends is a condition of && and ||, without parentheses.
	Depends string
	// When is the further condition of the step. A step without one has true.
	When bool
	// End is, for example, "succeeded".
	End string
}

// Wrong returns which step ended against its condition, or "". onExit is the name of the step that runs at the end in any
// case, or "".
func Wrong(all []Step, onExit string) string {
	of := byName(all)
	for _, s := range all {
		may := s.When && holds(s.Depends, of)
		if s.Name == onExit || s.End == "canceled" || may != (s.End == "skipped") {
			continue
		}
		return fmt.Sprintf("step %s is %s; it depends on %q, which is %v, and its when is %v", s.Name, s.End, s.Depends, holds(s.Depends, of), s.When)
	}
	return ""
}

// Outcome returns how a run ends that nobody canceled. It succeeds if each step that has not succeeded is followed by
// a step that was not skipped, and if onExit succeeds.
func Outcome(all []Step, onExit string) string {
	for _, s := range all {
		switch s.End {
		case "succeeded", "skipped":
			continue
		}
		handled := false
		for _, next := range all {
			handled = handled || next.End != "skipped" && strings.Contains(" "+next.Depends, " "+s.Name+".")
		}
		if !handled || s.Name == onExit {
			return "failed"
		}
	}
	return "succeeded"
}

func byName(all []Step) map[string]string {
	out := map[string]string{}
	for _, s := range all {
		out[s.Name] = s.End
	}
	return out
}

// holds evaluates a condition. The empty one holds.
func holds(text string, of map[string]string) bool {
	if text == "" {
		return true
	}
	for part := range strings.SplitSeq(text, " || ") {
		all := true
		for term := range strings.SplitSeq(part, " && ") {
			name, end, _ := strings.Cut(term, ".")
			all = all && of[name] == end
		}
		if all {
			return true
		}
	}
	return false
}
