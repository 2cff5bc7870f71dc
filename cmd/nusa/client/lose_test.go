package client

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestLoseAsksForTheName: the command asks for the name of the region as the confirmation
// that nothing runs there.
func TestLoseAsksForTheName(t *testing.T) {
	for _, c := range []struct {
		line, typed, says string
		code              int
	}{
		{"region lose jakarta --by ayu", "jakarta\n", "region jakarta is lost", 0},
		{"region lose jakarta --by ayu", "yes\n", `"yes" is not the name of the region, jakarta: nothing has changed`, 1},
		{"region lose jakarta --by ayu", "\n", "give --confirm jakarta", 1},
		{"region lose jakarta --by ayu", "", "nothing was typed", 1},
		{"region lose jakarta --by ayu --confirm jakart", "jakarta\n", "not the name of the region", 1},
		{"region lose jakarta --yes", "", "unknown flag --yes", 1},
		{"region lose mars --by ayu", "mars\n", `there is no region "mars"`, 1},
		{"region lose japaneast --by ayu", "japaneast\n", "is connected", 1},
	} {
		f := newFake(t)
		out, errOut, code := f.run(context.Background(), c.typed, append(strings.Fields(c.line), "--addr", f.addr)...)
		if code != c.code || !strings.Contains(out+errOut, c.says) {
			t.Errorf("%s, typed %q: exit code %d, %s%s", c.line, c.typed, code, out, errOut)
		}
		if prompt := strings.Contains(errOut, "Type the name"); prompt && strings.Contains(c.line, "japaneast") {
			t.Errorf("%s: asks for the name of a connected region: %s", c.line, errOut)
		}
		asked := slices.ContainsFunc(f.requests, func(m proto.Message) bool {
			r, lose := m.(*nusav1.LoseRegionRequest)
			return lose && r.GetConfirm() != r.GetName()
		})
		if asked {
			t.Errorf("%s, typed %q: asked the server without the name: %v", c.line, c.typed, f.requests)
		}
	}
}
