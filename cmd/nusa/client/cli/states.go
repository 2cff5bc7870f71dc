package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// States is the value of the flag --state, which selects objects by the words that tables show for their states.
type States struct {
	known, chosen []string
}

// StateFlag adds --state to a list. known are the words that the flag takes.
func StateFlag(c *cobra.Command, what string, known ...string) *States {
	s := &States{known: known}
	c.Flags().Var(s, "state", "only "+what+" in one of these states: "+strings.Join(known, ", "))
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp)) // fails only without the flag
	return s
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
