package objects

import (
	"fmt"
	"slices"
	"strings"
)

// namesInAlarm is the number of objects that an alarm names.
const namesInAlarm = 3

// AlarmText returns an alarm about some objects, or "" if there are none: what, their names, and the
// command that shows more.
func AlarmText(what string, names []string, command string) string {
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	list := strings.Join(names[:min(len(names), namesInAlarm)], ", ")
	if more := len(names) - namesInAlarm; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return what + ": " + list + "; see " + command
}
