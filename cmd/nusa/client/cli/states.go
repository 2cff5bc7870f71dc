package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/filter"
)

// States is the value of the flag --state, which selects objects by the words that tables show for their states.
type States struct {
	known, chosen []string
}

// maxFlagText is the greatest length of the text about a flag in a table of the documentation.
const maxFlagText = 120

// StateFlag adds --state to a list. known are the words that the flag takes.
func StateFlag(c *cobra.Command, what string, known ...string) *States {
	s := &States{known: known}
	text := "only " + what + " in one of these states: " + strings.Join(known, ", ")
	if len(text) > maxFlagText {
		text = "only these states: " + strings.Join(known, ", ")
	}
	c.Flags().Var(s, "state", text)
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp)) // fails only without the flag
	return s
}

// Words returns the words that the flag has.
func (s *States) Words() []string { return s.chosen }

// EnumStateFlag is StateFlag for the values of an enumeration. of is any of its values.
func EnumStateFlag(c *cobra.Command, what string, of protoreflect.Enum) *States {
	return StateFlag(c, what, filter.Words(of)...)
}

// Enums returns the values of an enumeration that the flag has. of is any of its values.
func Enums[E protoreflect.Enum](s *States, of E) (out []E) {
	for i := range of.Descriptor().Values().Len() {
		e, _ := of.Type().New(of.Descriptor().Values().Get(i).Number()).(E)
		if s.Chosen(term.Word(e)) {
			out = append(out, e)
		}
	}
	return out
}

// LabelFlag adds --label to a list.
func LabelFlag(c *cobra.Command, labels *map[string]string, what string) {
	c.Flags().StringToStringVarP(labels, "label", "l", nil, "only "+what+" with this label, KEY=VALUE")
}

// CheckLabels returns an error if a server of an earlier version has ignored the labels of a list. It asks once more, with
// a label that no object can have: found is how many objects the list has, and ask returns how many it has now. A command
// that changes the objects calls it before the list, too, with found 1: else another server can have returned the list.
func CheckLabels(labels map[string]string, found int, ask func(labels map[string]string) (int, error)) error {
	if len(labels) == 0 || found == 0 {
		return nil
	}
	n, err := ask(map[string]string{"": ""})
	if err == nil && n > 0 {
		err = errors.New("--label: the server has an earlier version, which cannot select these objects by labels: list them without --label")
	}
	return err
}

// NoneSuch says that no object matched the filters of a list, such as "no buses in the state failing; nusa bus list
// shows all". Without filters it returns "". list is the command without the name of the program.
func NoneSuch(program, what, list string, s *States, labels map[string]string) string {
	filters := s.Text()
	if len(labels) > 0 {
		filters += " with the labels " + term.LabelText(labels)
	}
	if filters == "" {
		return ""
	}
	return fmt.Sprintf("no %s%s; %s %s shows all", what, filters, program, list)
}

// Has reports whether an object with these states is selected. Without --state every object is.
func (s *States) Has(states ...string) bool {
	return len(s.chosen) == 0 || s.Chosen(states...)
}

// Chosen reports whether the flag has one of some states.
func (s *States) Chosen(states ...string) bool {
	return slices.ContainsFunc(states, func(w string) bool { return slices.Contains(s.chosen, w) })
}

// Text returns the filter for a message, such as " in the state lost", or "".
func (s *States) Text() string {
	if len(s.chosen) == 0 {
		return ""
	}
	return " in the state " + strings.Join(s.chosen, " or ")
}

// String implements pflag.Value.
func (s *States) String() string { return strings.Join(s.chosen, ",") }

// Type implements pflag.Value.
func (s *States) Type() string { return "STATE" }

// Set implements pflag.Value. The flag may be repeated, and a value may have several words with commas.
func (s *States) Set(text string) error {
	for word := range strings.SplitSeq(strings.ToLower(text), ",") {
		if !slices.Contains(s.known, word) {
			return fmt.Errorf("not one of %s", strings.Join(s.known, ", "))
		}
		s.chosen = append(s.chosen, word)
	}
	return nil
}
