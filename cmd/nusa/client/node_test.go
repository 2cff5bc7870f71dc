package client

import (
	"strings"
	"testing"
)

// TestNodeOfAnotherRegion: the suggestion for a node that is in another region names that region.
func TestNodeOfAnotherRegion(t *testing.T) {
	f := newFake(t)
	_, errOut, code := f.run(t.Context(), "", "node", "status", "n2-世界", "--addr="+f.addr)
	if want := "did you mean n2-世界 of region "; code != 1 || !strings.Contains(errOut, want) {
		t.Errorf("code %d, %q, want %q", code, errOut, want)
	}
}

// TestNodeListByLabel: node list shows the nodes that have all labels, and says when none has.
// server list prints names, too.
func TestNodeListByLabel(t *testing.T) {
	f := newFake(t)
	for line, want := range map[string]string{
		"node list -o name":                             "aaaabbbb-cccc ddddeeee-ffff",
		"server list -o name":                           "g1 g2",
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
