package identity

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNotExpected is wrapped by the errors of Rules.Check.
var ErrNotExpected = errors.New("another peer was expected")

// Rule describes the IDs that one rule allows. An empty Region or Name allows every one.
type Rule struct {
	Kind         Kind
	Region, Name string
}

// Rules say who may be the other end of a connection: an ID that one of the rules allows.
// Without rules nobody may.
type Rules []Rule

// GlobalServers allows every global server.
func GlobalServers() Rules { return Rules{{Kind: Global}} }

// ServersOf allows the servers of a region, and nobody without a region.
func ServersOf(region string) Rules { return membersOf(Server, region) }

// AgentsOf allows the agents of a region, and nobody without a region.
func AgentsOf(region string) Rules { return membersOf(Agent, region) }

func membersOf(kind Kind, region string) Rules {
	if region == "" {
		return nil // an empty region in a rule would allow all regions
	}
	return Rules{{Kind: kind, Region: region}}
}

// Check returns an error if no rule allows the ID.
func (r Rules) Check(id ID) error {
	for _, one := range r {
		if one.allows(id) {
			return nil
		}
	}
	return fmt.Errorf("%w: the certificate names %s, and allowed is %s", ErrNotExpected, id.Describe(), r)
}

func (r Rule) allows(id ID) bool {
	return id.Kind == r.Kind && (r.Region == "" || r.Region == id.Region) && (r.Name == "" || r.Name == id.Name)
}

// String returns the rules for messages, for example "a regional server of region jakarta,
// or an operator".
func (r Rules) String() string {
	if len(r) == 0 {
		return "no peer"
	}
	var all []string
	for _, one := range r {
		all = append(all, one.String())
	}
	return strings.Join(all, ", or ")
}

// String returns the rule for messages.
func (r Rule) String() string {
	text := "a " + r.Kind.String()
	switch {
	case r.Name != "":
		text = r.Kind.String() + " " + r.Name
	case r.Kind == Agent || r.Kind == Operator:
		text = "an " + r.Kind.String()
	}
	switch {
	case r.Region != "":
		text += " of region " + r.Region
	case r.Kind.Regional():
		text += " of any region"
	}
	return text
}
