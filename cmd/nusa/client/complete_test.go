package client

import (
	"strings"
	"testing"
)

// TestCompletion: the shell gets the names that the server has, and nothing if the server does not respond.
func TestCompletion(t *testing.T) {
	f := newFake(t)
	for line, want := range map[string]string{
		"job status a":                      "api",
		"job status default/a":              "default/api",
		"job status o":                      "own@eastus", // on the second page
		"job stop":                          "api own@eastus",
		"job scale api ":                    "cache web",
		"job stop api --group ":             "cache web",
		"job stop --group ":                 "",
		"deadletter show ":                  "3f9a01bc0d0e0f01 77aa01bc0d0e0f02",
		"service resolve ":                  "web",
		"monitor --region jak":              "jakarta",
		"workflow approve release.3f ":      "gate",
		"workflow logs release.3f ":         "build fit gate ship",
		"node drain n1":                     "n1",
		"alloc list --region ja":            "jakarta japaneast",
		"alloc logs 1":                      "11112222-3333-4444-5555-666677778888",
		"region status jap":                 "japaneast",
		"job list --state st":               "pending starting running partial complete failed stopping stopped",
		"job list -o ":                      "table json yaml name",
		"webhook list --state ":             "ok failing behind disabled",
		"job schedule list --state ":        "paused running waiting failing idle",
		"deadletter list --state ":          "open redriven",
		"deadletter list --category ":       "app oom image config start timeout node_lost",
		"job diff api ":                     "1 2 3 stable",
		"job diff api 1 ":                   "1 2 3 stable",
		"job revert api --to s":             "stable",
		"job tag api --version ":            "1 2 3",
		"job revert --to ":                  "",
		"node list -l ":                     "disk=ssd rack=r1",
		"region list --label jur":           "jurisdiction=jp",
		"service list --tag ":               "blue",
		"workflow retry release.3f --from ": "build fit gate ship",
		"topology path jap":                 "japaneast",
		"status ja":                         "jakarta japaneast",
		"status ow":                         "own@eastus",
		"spare list --state r":              "reserving provisioning joining notifying ready releasing released cancelled failed expired",
	} {
		args := append([]string{"__complete"}, strings.Fields(line)...)
		if strings.HasSuffix(line, " ") || line == "job stop" {
			args = append(args, "")
		}
		args = append(args[:2:2], append([]string{"--addr=" + f.addr}, args[2:]...)...)
		out, _, _ := f.run(t.Context(), "", args...)
		names, _, _ := strings.Cut(out, ":")
		got := strings.Join(strings.Fields(names), " ")
		if got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	out, _, code := f.run(t.Context(), "", "__complete", "job", "status", "--addr=127.0.0.1:1", "a")
	if code != 0 || strings.Contains(out, "api") {
		t.Errorf("without a server: %d, %s", code, out)
	}
}
