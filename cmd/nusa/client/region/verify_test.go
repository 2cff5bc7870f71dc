package region

import (
	"strings"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestVerifyErrorSaysWhoDiffers(t *testing.T) {
	one := func(hash, problem string) *nusav1.ServerState {
		return &nusav1.ServerState{Id: "s" + hash, Hash: hash, Error: problem}
	}
	for name, c := range map[string]struct {
		equal   bool
		servers []*nusav1.ServerState
		want    string
	}{
		"equal":  {true, []*nusav1.ServerState{one("aa", ""), one("aa", "")}, ""},
		"differ": {false, []*nusav1.ServerState{one("aa", ""), one("bb", ""), one("", "gone")}, "have different states at index 7"},
		"silent": {false, []*nusav1.ServerState{one("aa", ""), one("", "gone")}, "1 of 2 servers of region r did not respond"},
	} {
		err := verifyError(&nusav1.VerifyRegionResponse{Region: "r", Index: 7, Equal: c.equal, Servers: c.servers})
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
