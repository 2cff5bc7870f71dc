package filter

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Has reports whether a list shows an object with these states. wanted are the states of the request. Without any, a
// list shows all objects.
func Has(wanted []string, states ...string) bool {
	return len(wanted) == 0 || slices.ContainsFunc(states, func(s string) bool { return slices.Contains(wanted, s) })
}

// Labels reports whether labels include all of want.
func Labels(labels, want map[string]string) bool {
	for k, v := range want {
		if have, found := labels[k]; !found || have != v {
			return false
		}
	}
	return true
}

// Check returns an error that lists the known states if a request has another one.
func Check(wanted, known []string) error {
	for _, s := range wanted {
		if !slices.Contains(known, s) {
			return unknown(fmt.Sprintf("%.40q", s), known)
		}
	}
	return nil
}

// CheckEnum is Check for states that are values of an enumeration.
func CheckEnum[E protoreflect.Enum](wanted []E) error {
	for _, s := range wanted {
		if word(s) == "" {
			return unknown(fmt.Sprint(s.Number()), Words(s))
		}
	}
	return nil
}

func unknown(value string, known []string) error {
	last := len(known) - 1
	return rpcerr.Invalid(&nusav1.Problem{Field: "states", Message: fmt.Sprintf("%s is not a state: use %s or %s", value, strings.Join(known[:last], ", "), known[last])})
}

// Words returns the words for the values of an enumeration, without that for 0.
func Words(e protoreflect.Enum) (out []string) {
	values := e.Descriptor().Values()
	for i := range values.Len() {
		if n := values.Get(i).Number(); n != 0 {
			out = append(out, word(e.Type().New(n)))
		}
	}
	return out
}

// word returns "running" for JOB_STATE_RUNNING, and "" for 0 and for a value that is not known.
func word(e protoreflect.Enum) string {
	values := e.Descriptor().Values()
	v := values.ByNumber(e.Number())
	if v == nil || e.Number() == 0 {
		return ""
	}
	prefix := strings.TrimSuffix(string(values.ByNumber(0).Name()), "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix))
}
