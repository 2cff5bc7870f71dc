package client

import (
	"strings"
	"testing"
)

// TestNodeListByLabel: node list shows the nodes that have all labels, and says when none has.
func TestNodeListByLabel(t *testing.T) {
	f := newFake(t)
	for line, want := range map[string]string{
		"node list -o name":                             "aaaabbbb-cccc ddddeeee-ffff",
		"node list -o name -l disk=ssd":                 "aaaabbbb-cccc",
		"node list -o name -l disk=ssd -l rack=r1":      "aaaabbbb-cccc",
		"node list -o name -l disk=ssd --label rack=r2": "",
		"node list -o name -l disk=ssd --state lost":    "",
		"node list -l disk=hdd --pool gpu":              "no nodes in pool gpu with the labels disk=hdd in the regions that answered; nusa node list shows all",
	} {
		args := strings.Fields(line)
		out, _, code := f.run(t.Context(), "", append(args[:2:2], append([]string{"--addr=" + f.addr}, args[2:]...)...)...)
		if got := strings.Join(strings.Fields(out), " "); got != want || code != 0 {
			t.Errorf("%s: %q, code %d, want %q", line, got, code, want)
		}
	}
}
