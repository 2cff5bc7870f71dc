package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/auditwire"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// trailsAreForwarded: the global tier stores the trails of all regions, and what is stored verifies.
// Nobody but a global server can ask a region to forward.
func (f *federation) trailsAreForwarded(t *testing.T) {
	jane := nusav1.NewAuditClient(f.as("operator/jane", portStandby))
	for _, region := range []string{"a", "b"} {
		port := map[string]int{"a": portA, "b": portB}[region]
		f.eventually("the trail of region "+region+" is stored", func(ctx context.Context) error {
			own, err := nusav1.NewAuditClient(f.as("operator/jane", port)).Checkpoint(ctx, &nusav1.AuditCheckpointRequest{})
			if err != nil {
				return err
			}
			end, err := jane.Checkpoint(ctx, &nusav1.AuditCheckpointRequest{Region: region, Stored: true})
			if err == nil && (end.GetTrail() != own.GetTrail() || end.GetSize() < 1 || end.GetSize() < own.GetSize()) {
				err = fmt.Errorf("%d of %d entries", end.GetSize(), own.GetSize())
			}
			return err
		})
		x, err := exported(t.Context(), jane, region)
		if err != nil {
			t.Fatal(err)
		}
		if report := audit.Verify(x, x.Key); len(report.Findings) > 0 || report.Entries == 0 {
			t.Errorf("region %s: %+v", region, report)
		}
	}
	all, err := jane.List(t.Context(), &nusav1.ListAuditRequest{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]int{}
	for _, e := range all.GetEntries() {
		sources[e.GetSource()]++
	}
	if sources["global"] == 0 || sources["region/a"] == 0 || sources["region/b"] == 0 {
		t.Errorf("the entries are of %v", sources)
	}
	for file, want := range map[string]string{"g1": `"verb":"submit"`, "region-a": `"outcome":"denied"`, "region-b": `"region":"b"`} {
		f.eventually("the file has the entries", func(context.Context) error {
			text, err := os.ReadFile(f.trail(file))
			if file == "g1" && errors.Is(err, fs.ErrNotExist) { // either server may be the active one
				text, err = os.ReadFile(f.trail("g2"))
			}
			if err == nil && !strings.Contains(string(text), want) {
				err = fmt.Errorf("file %s is without %s", file, want)
			}
			return err
		})
	}
	for _, member := range []string{"operator/jane", "region/a/server/s2", "region/a/agent/n1"} {
		_, err := nusav1.NewAuditClient(f.as(member, portA)).Forward(t.Context(), &nusav1.ForwardAuditRequest{})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s asks a region to forward: %v", member, err)
		}
	}
}

// exported returns what the global tier has stored of a region's trail.
func exported(ctx context.Context, c nusav1.AuditClient, region string) (x audit.Export, err error) {
	stream, err := c.Export(ctx, &nusav1.ExportAuditRequest{Region: region, Stored: true})
	for err == nil {
		var chunk *nusav1.AuditChunk
		chunk, err = stream.Recv()
		if h := chunk.GetHead(); h != nil {
			x.Trail, x.Key = h.GetTrail(), h.GetKey()
			x.Base, err = auditwire.Tree(h.GetBase())
		}
		for _, e := range chunk.GetPart().GetEntries() {
			x.Entries = append(x.Entries, auditwire.Exported(e))
		}
		if end := chunk.GetCheckpoint(); end != nil {
			x.Checkpoint = end.GetSigned()
		}
	}
	if err == io.EOF {
		err = nil
	}
	return x, err
}
