package expr_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/expr"
)

func TestEventFilters(t *testing.T) {
	e := &expr.Event{
		Type: "job.submitted", Subject: "pay/shop", Message: "version 3", Namespace: "pay", Number: 7, Log: "f1",
		Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	for source, want := range map[string]bool{
		`event.type == "job.submitted"`:                                       true,
		`event.type.startsWith("job.") && event.namespace in ["pay", "shop"]`: true,
		`event.region != ""`:                                                  false,
		`event.number > 7`:                                                    false,
		`event.time < timestamp("2027-01-01T00:00:00Z")`:                      true,
		`event.subject.matches("^pay/") && event.log == "f1"`:                 true,
		`event.message.contains("version 4")`:                                 false,
	} {
		f, err := expr.CompileEvent(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got, err := f.Holds(e); got != want || err != nil {
			t.Errorf("%s: %t, %v, want %t", source, got, err, want)
		}
	}
}

func TestBadEventFilters(t *testing.T) {
	for source, want := range map[string]string{
		"":                               "empty",
		`event.type == "a" && event.typ`: `at column 27: an event has no field "typ" (it has type, subject`,
		`event.type = "a"`:               "at column 12",
		`event.type`:                     "must be a bool",
		`node.pool == "x"`:               "undeclared reference",
		`event.type.matches("(")`:        "column",
		`[1,2].all(a, [1,2].all(b, [1,2].all(c, a == b && b == c)))`:                             "",
		`event.type == "` + strings.Repeat("x", expr.MaxEventFilter):                             "the limit is",
		`event.message.split("").all(a, event.message.split("").all(b, a + b != event.subject))`: "steps an event",
	} {
		_, err := expr.CompileEvent(source)
		if !errors.Is(err, expr.ErrCompile) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60s: %v, want %s", source, err, want)
		}
	}
}

// FuzzCompileEvent: whatever a filter says, it is refused, or has a value or an error on an event.
func FuzzCompileEvent(f *testing.F) {
	for _, source := range []string{`event.type == "a"`, `event.subject.split("/")[1] == "b"`, `event.number / 0 == 1`, `"a".matches("(a+)+$")`} {
		f.Add(source)
	}
	f.Fuzz(func(t *testing.T, source string) {
		p, err := expr.CompileEvent(source)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without a text")
			}
			return
		}
		if ok, err := p.Holds(&expr.Event{Type: "a"}); ok && err != nil {
			t.Fatalf("%s holds, with the error %v", source, err)
		}
	})
}
