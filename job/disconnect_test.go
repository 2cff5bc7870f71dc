package job

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestBinding: a lease that binds a group needs drivers that stop at its end.
func TestBinding(t *testing.T) {
	for _, c := range []struct {
		group, global, local string
		warned               bool
	}{
		{group: "", global: "NONE", local: "NONE"},
		{group: "disconnect: {node: {running: keep}, region: {running: keep}}", global: "NONE", local: "NONE"},
		{group: "disconnect: {node: {running: stop}}", global: "NODE", local: "NODE"},
		{group: "disconnect: {region: {running: stop}}", global: "REGION", local: "NONE", warned: true},
		{group: "disconnect: {node: {running: stop}, region: {running: stop}}", global: "BOTH", local: "NODE"},
		{group: "singleton: true", global: "BOTH", local: "NODE"},
		{group: "singleton: true, disconnect: {region: {running: stop}}", global: "BOTH", local: "NODE"},
		{group: "singleton: true, disconnect: {region: {running: keep, replace: false}}", global: "NODE", local: "NODE"},
	} {
		spec := mustParse(t, "name: a\ngroups: {g: {"+strings.TrimPrefix(c.group+", ", ", ")+"tasks: {t: {driver: lxc}, u: {driver: process, config: {command: x}}}}}")
		for _, when := range []string{"as written", "defaulted"} {
			g := spec.Groups["g"]
			if got := BindingOf(g, false).String(); got != "LEASE_BINDING_"+c.global {
				t.Errorf("%s, %s: %s, want %s", c.group, when, got, c.global)
			}
			if got := BindingOf(g, true).String(); got != "LEASE_BINDING_"+c.local {
				t.Errorf("%s, %s: of a region's own job %s, want %s", c.group, when, got, c.local)
			}
			for driver, needs := range map[string]bool{"lxc": c.global != "NONE", "process": c.global != "NONE"} {
				if got := slices.Contains(AskOf(g).Needs[driver], selfFencing); got != needs {
					t.Errorf("%s, %s: %s must stop at the end of a lease: %v, want %v", c.group, when, driver, got, needs)
				}
			}
			Default(spec)
		}
		warned := slices.ContainsFunc(Warnings(spec), func(w string) bool { return strings.Contains(w, "until the region's lease ends") })
		if warned != c.warned {
			t.Errorf("%s: warned %v, want %v", c.group, warned, c.warned)
		}
	}
}

// TestFailbackDefaults: the default of work that can move is to return after a review.
// Work that cannot move has no failback.
func TestFailbackDefaults(t *testing.T) {
	for group, want := range map[string]string{
		"": "FAILBACK_MODE_REVIEW 10m",
		"disconnect: {region: {replace: false}}, ":                                 "",
		"disconnect: {region: {failback: {mode: never}}}, ":                        "FAILBACK_MODE_NEVER 10m",
		"disconnect: {region: {failback: {after: 1s}}}, ":                          "FAILBACK_MODE_REVIEW 1s",
		"disconnect: {region: {replace: true, failback: {mode: auto}}}, ":          "FAILBACK_MODE_AUTO 10m",
		"singleton: true, disconnect: {region: {failback: {mode: auto}}}, ":        "FAILBACK_MODE_AUTO 10m",
		"singleton: true, disconnect: {region: {running: keep, replace: false}}, ": "",
	} {
		spec := mustParse(t, "name: a\ngroups: {g: {"+group+"tasks: {t: {driver: process, config: {command: x}}}}}")
		Default(spec)
		var got string
		if f := spec.Groups["g"].GetDisconnect().GetRegion().GetFailback(); f != nil {
			got = f.GetMode().String() + " " + FormatDuration(f.GetAfter().AsDuration())
		}
		if got != want {
			t.Errorf("%s: %s, want %s", group, got, want)
		}
	}
	one, two := mustParse(t, service("")), mustParse(t, service("disconnect: {region: {failback: {mode: auto, after: 1m}}}, "))
	Default(one)
	Default(two)
	var lines []string
	for _, d := range Diff(one, two) {
		lines = append(lines, d.GetField()+": "+d.GetOld()+" > "+d.GetNew())
	}
	if got, want := strings.Join(lines, ", "), "groups.g.disconnect.region.failback.mode: review > auto, groups.g.disconnect.region.failback.after: 10m > 1m"; got != want {
		t.Errorf("the diff is %s, want %s", got, want)
	}
	text, err := Export(two, YAML)
	if err != nil || !strings.Contains(string(text), "region:\n        failback:\n          mode: auto\n          after: 1m\n") {
		t.Errorf("%v, exported as\n%s", err, text)
	}
	if text, err = Export(one, YAML); err != nil || strings.Contains(string(text), "disconnect") {
		t.Errorf("%v, exported with defaults:\n%s", err, text)
	}
}

func service(group string) string {
	return "name: a\ngroups: {g: {" + group + "tasks: {t: {driver: process, config: {command: x}}}}}"
}

// TestMessagesWithoutDefaults: messages whose defaults are not filled in are validated,
// too, because any client may send them.
func TestMessagesWithoutDefaults(t *testing.T) {
	spec := mustParse(t, service(""))
	spec.Groups["g"].Disconnect = &nusav1.Disconnect{Region: &nusav1.DisconnectLevel{Failback: &nusav1.Failback{Mode: 9}}}
	if err := Validate(spec); err == nil || err.Error() != "groups.g.disconnect.region.failback.mode: value 9 is not known" {
		t.Errorf("got %v", err)
	}
}

// TestKillTimeoutOfABoundGroup: after a recovery every lease waits for the longest kill_timeout
// of what a lease binds.
func TestKillTimeoutOfABoundGroup(t *testing.T) {
	for group, most := range map[string]time.Duration{
		"":                                      maxKill,
		"singleton: true, ":                     maxBoundKill,
		"disconnect: {node: {running: stop}}, ": maxBoundKill,
		"disconnect: {region: {running: stop}}, ": maxBoundKill,
	} {
		for _, over := range []time.Duration{0, time.Second} {
			spec := mustParse(t, service(group))
			spec.Groups["g"].Tasks["t"].KillTimeout = durationpb.New(most + over)
			if err := Validate(spec); (err != nil) != (over > 0) {
				t.Errorf("%skill_timeout %s: %v", group, most+over, err)
			}
		}
	}
	spec := mustParse(t, service("singleton: true, "))
	spec.Groups["g"].Tasks["t"].KillTimeout = durationpb.New(time.Hour)
	const want = "groups.g.tasks.t.kill_timeout: 1h is too long with singleton: other places wait for that time before they start the instance; give at most 10m"
	if err := Validate(spec); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestUnnoticed: nothing moves away from a region before its silence is noticed, so a shorter time
// is refused where work may move.
func TestUnnoticed(t *testing.T) {
	for text, want := range map[string]string{
		"region: {after: 8s}":                 "",
		"region: {after: 7s, replace: false}": "",
		"node: {after: 1s}":                   "",
		"region: {after: 7s}":                 "groups.main.disconnect.region.after: 7s is too short: this federation notices the loss of a region after 8s (by the lease of regions): give at least 8s",
	} {
		spec, err := Parse([]byte("name: a\ngroups: {main: {disconnect: {"+text+"}, tasks: {t: {driver: process, config: {command: x}}}}}"), "")
		if err != nil {
			t.Fatal(err)
		}
		Default(spec)
		got := ""
		if problems := Unnoticed(spec, 8*time.Second); len(problems) > 0 {
			got = problems.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
