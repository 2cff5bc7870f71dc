package uplink

import (
	"testing"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// FuzzHello: whatever hello a region sends, it is refused, or its definition is valid.
func FuzzHello(f *testing.F) {
	raw, err := proto.Marshal(&nusav1.RegionHello{Definition: &nusav1.RegionDefinition{Name: "a", Location: &nusav1.Location{Latitude: 1}}, ClusterId: "x", Protocol: protocol, Master: "s1"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		h := &nusav1.RegionHello{}
		if proto.Unmarshal(raw, h) != nil {
			return
		}
		if checkHello(h) == nil && (h.GetDefinition().GetName() == "" || h.GetClusterId() == "") {
			t.Fatalf("accepted: %v", h)
		}
	})
}
