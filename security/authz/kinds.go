package authz

import (
	"fmt"
	"slices"
	"strings"
)

// Any stands for every verb or kind in a rule, and for every namespace or region in an action.
const Any = "*"

// Kind is a kind of objects and the verbs that an action may have for these objects.
type Kind struct {
	Name  string
	Verbs []string
	// Namespaced kinds have objects in namespaces, regional kinds have objects in regions.
	Namespaced, Regional bool
}

// kinds is the table of all kinds. The verb read shows objects, but never what a task wrote
// (logs, files), what a task can be made to do (exec) or the value of a secret (reveal).
var kinds = []Kind{
	kind("job", "read plan submit dispatch stop override", true, true),
	kind("allocation", "read stop restart signal logs files exec", true, true),
	kind("reservation", "read create claim release", true, true),
	kind("spare", "read prepare release cancel", true, true),
	kind("semaphore", "read set remove", true, false),
	kind("provisioner", "read set remove", false, false),
	kind("secret", "read reveal set remove", true, true),
	kind("event", "read", true, true),
	kind("namespace", "read set remove", true, false),
	kind("node", "read cordon drain remove register ban", false, true),
	kind("pool", "read set remove", false, true),
	kind("region", "read define cordon drain failback verify rebind lose remove ban", false, true),
	kind("topology", "read check", false, true),
	kind("origin", "read set remove", false, true),
	kind("webhook", "read set send remove", false, true),
	kind("bus", "read set send remove", false, true),
	kind("intake", "read set remove", false, true),
	kind("system", "read monitor reconcile recover", false, true),
	kind("token", "read create revoke", false, true),
	kind("role", "read set remove", false, true),
	kind("key", "read rotate", false, true),
	kind("audit", "read export verify", false, true),
}

func kind(name, verbs string, namespaced, regional bool) Kind {
	return Kind{Name: name, Verbs: strings.Fields(verbs), Namespaced: namespaced, Regional: regional}
}

// Kinds returns a copy of the table of kinds.
func Kinds() []Kind {
	out := slices.Clone(kinds)
	for i := range out {
		out[i].Verbs = slices.Clone(out[i].Verbs)
	}
	return out
}

// kindOf returns the row of a kind.
func kindOf(name string) (Kind, bool) {
	for _, k := range kinds {
		if k.Name == name {
			return k, true
		}
	}
	return Kind{}, false
}

// kindNames returns the names of all kinds, for messages.
func kindNames() string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.Name)
	}
	return strings.Join(out, ", ")
}

// Action is what a principal wants to do. Namespace and Region are Any for an action on the
// objects of all namespaces or regions, for example a list of all jobs. The empty text is the
// same as Any for kinds that have namespaces or regions, and is ignored for the others.
type Action struct {
	Verb, Kind              string
	Namespace, Region, Name string
	// Request is all that conditions read. This package does not read it. Decide sets By, the name of
	// the principal, for conditions.
	Request any
	By      string
}

// Check returns an error that lists what exists if no row has the kind and the verb.
func (a Action) Check() error {
	k, ok := kindOf(a.Kind)
	switch {
	case !ok:
		return fmt.Errorf("kind %q does not exist: use %s", a.Kind, kindNames())
	case !slices.Contains(k.Verbs, a.Verb):
		return fmt.Errorf("kind %s has no verb %q: use %s", a.Kind, a.Verb, strings.Join(k.Verbs, ", "))
	}
	return nil
}

// String returns the action for messages, for example "exec allocation api-1 in namespace
// pay, region jakarta".
func (a Action) String() string {
	out := a.Verb + " " + a.Kind
	if a.Name != "" {
		out += " " + a.Name
	}
	k, _ := kindOf(a.Kind)
	var in []string
	if k.Namespaced {
		in = append(in, place("namespace", a.Namespace))
	}
	if k.Regional {
		in = append(in, place("region", a.Region))
	}
	if len(in) > 0 {
		out += " in " + strings.Join(in, ", ")
	}
	return out
}

func place(what, name string) string {
	if name == "" || name == Any {
		return "any " + what
	}
	return what + " " + name
}

// normal returns the action with Any for each place that the action leaves out, and without
// places that the kind does not have. known is false if no row has the kind and the verb.
func (a Action) normal() (out Action, known bool) {
	k, ok := kindOf(a.Kind)
	if !ok || !slices.Contains(k.Verbs, a.Verb) {
		return a, false
	}
	scope := func(has bool, name string) string {
		switch {
		case !has:
			return ""
		case name == "":
			return Any
		}
		return name
	}
	a.Namespace, a.Region = scope(k.Namespaced, a.Namespace), scope(k.Regional, a.Region)
	return a, true
}
