package wire

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/submits"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// FuzzAgentMessage: whatever an agent sends, the parts of a message are read or refused. What
// protobuf reads, this package reads, too.
func FuzzAgentMessage(f *testing.F) {
	for _, m := range []*nusav1.AgentMessage{
		{Kind: &nusav1.AgentMessage_Hello{Hello: &nusav1.AgentHello{NodeId: "x", Name: "n1", Region: "a", Inventory: &nusav1.NodeInventory{Gpus: []*nusav1.GPUDevice{{Id: "0"}}}}}},
		{Kind: &nusav1.AgentMessage_Lease{Lease: &nusav1.LeaseRequest{Id: 7}}, OrdersAck: &nusav1.Position{Epoch: "e", Sequence: 9}, Stats: &nusav1.NodeStats{}},
		{Kind: &nusav1.AgentMessage_Reports{Reports: anyReports.Example(1)}},
		{Kind: &nusav1.AgentMessage_Goodbye{Goodbye: &nusav1.Goodbye{Message: "bye"}}},
	} {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := ReadAgentMessage(raw)
		var whole nusav1.AgentMessage
		if wholeErr := proto.Unmarshal(raw, &whole); err != nil && wholeErr == nil {
			t.Fatalf("protobuf reads %v, and this package says %v", &whole, err)
		}
		_, _ = ReadPosition(m.OrdersAck)
		_ = new(NodeStats).Read(m.Stats)
		switch m.Kind {
		case KindLease:
			_, _, _ = ReadLeaseRequest(m.Body)
		case KindReports:
			_, _ = ReadReports(m.Body)
		case KindHello:
			var h nusav1.AgentHello
			if proto.Unmarshal(m.Body, &h) == nil {
				_ = NodeFromProto(&h)
			}
		}
	})
}

// FuzzSubmit: whatever a client submits, the request is read or refused. A job that is valid can be stored.
func FuzzSubmit(f *testing.F) {
	spec, err := job.Parse([]byte("name: web\ngroups:\n  main:\n    count: 2\n    tasks:\n      t:\n        driver: mock\n        resources: {cpu: 10m, memory: 16MiB}\n"), "job.yaml")
	if err != nil {
		f.Fatal(err)
	}
	raw, err := proto.Marshal(&nusav1.SubmitRequest{Spec: spec, IdempotencyKey: "k"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var whole nusav1.SubmitRequest
		wholeErr := proto.Unmarshal(raw, &whole)
		fields, err := submits.NewRequest(raw).Fields()
		if (err == nil) != (wholeErr == nil) && err != nil {
			t.Fatalf("protobuf reads %v, and package submits says %v", &whole, err)
		}
		if err != nil || wholeErr != nil {
			return
		}
		if fields.Key != whole.GetIdempotencyKey() || fields.CheckRevision != whole.GetCheckRevision() || fields.Again != whole.GetAgain() {
			t.Fatalf("the fields are %+v, not those of %v", fields, &whole)
		}
		name, rest, ok := submits.CutName(fields.Spec)
		var spec, cut nusav1.JobSpec
		if proto.Unmarshal(fields.Spec, &spec) != nil {
			t.Fatal("protobuf has read the spec, and does not read its bytes")
		}
		if ok && (proto.Unmarshal(submits.WithName(name, rest), &cut) != nil || !proto.Equal(&spec, &cut)) {
			t.Fatalf("without its name and with it again: %v, not %v", &cut, &spec)
		}
		for name := range spec.GetGroups() {
			_, _ = EncodedGroup(fields.Spec, name)
		}
		job.Default(&spec)
		if job.Validate(&spec) != nil {
			return
		}
		stored, err := proto.MarshalOptions{Deterministic: true}.Marshal(&spec)
		if err != nil {
			t.Fatal(err)
		}
		got := JobFromProto(&spec, stored, true, 1)
		if got == nil || len(got.Groups) != len(spec.GetGroups()) {
			t.Fatalf("%v is stored as %v", &spec, got)
		}
		for name := range spec.GetGroups() {
			if _, err := EncodedGroup(stored, name); err != nil {
				t.Fatalf("group %q: %v", name, err)
			}
		}
	})
}
