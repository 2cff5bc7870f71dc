package jobhistory_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/jobhistory"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// of makes a job of versions, the latest first. Versions with an equal spec run images of the same name.
func of(images string, all ...*nusav1.JobVersion) *jobhistory.Job {
	names := strings.Fields(images)
	return &jobhistory.Job{Name: "default/web", Versions: all, Spec: func(v *nusav1.JobVersion) (*nusav1.JobSpec, error) {
		for i := range all {
			if all[i] == v {
				return &nusav1.JobSpec{Name: "web", Labels: map[string]string{"image": names[i]}}, nil
			}
		}
		return nil, status.Error(codes.Internal, "no such version")
	}}
}

func version(n int64, tag string, complete bool) *nusav1.JobVersion {
	return &nusav1.JobVersion{Version: n, Tag: tag, Complete: complete}
}

func TestTarget(t *testing.T) {
	for name, c := range map[string]struct {
		job  *jobhistory.Job
		to   string
		want int64 // 0: none is found
	}{
		"the latest that ran completely":      {of("c b a", version(3, "", false), version(2, "", false), version(1, "", true)), "", 1},
		"not one with the present spec":       {of("a b a", version(3, "", false), version(2, "", true), version(1, "", true)), "", 2},
		"the present spec, if no other":       {of("a a", version(2, "", false), version(1, "", true)), "", 1},
		"none ran completely: the one before": {of("c b a", version(7, "", true), version(5, "", false), version(1, "", false)), "", 5},
		"a number":                            {of("c b a", version(3, "", true), version(2, "", true), version(1, "", false)), "1", 1},
		"a tag":                               {of("c b a", version(3, "", true), version(2, "", true), version(1, "v1.0", false)), "v1.0", 1},
		"no such tag":                         {of("b a", version(2, "", true), version(1, "", true)), "v9.0", 0},
		"only a present":                      {of("a", version(1, "", true)), "", 0},
	} {
		var spec *nusav1.JobSpec
		out, err := c.job.Revert(&nusav1.RevertJobRequest{To: c.to}, func(req *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
			spec = req.GetSpec()
			return &nusav1.SubmitResponse{}, nil
		})
		if c.want == 0 {
			if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "nusa job history default/web") || spec != nil {
				t.Errorf("%s: %v, %v", name, out, err)
			}
			continue
		}
		at := slices.IndexFunc(c.job.Versions, func(v *nusav1.JobVersion) bool { return v.GetVersion() == c.want })
		if want, _ := c.job.Spec(c.job.Versions[at]); err != nil || out.GetRevertedTo() != c.want || !proto.Equal(spec, want) {
			t.Errorf("%s: version %d, %v, want %d", name, out.GetRevertedTo(), err, c.want)
		}
	}
}

func TestDiff(t *testing.T) {
	job := of("c b a", version(5, "", false), version(3, "old", false), version(1, "", false))
	for name, c := range map[string]struct {
		from, to string
		want     string // "" : not found
	}{
		"the present one and the one before": {"", "", "5 from 3: b → c"},
		"without from":                       {"", "3", "3 from 1: a → b"},
		"by tag":                             {"old", "1", "1 from 3: b → a"},
		"the same":                           {"5", "5", "5 from 5"},
		"before the first":                   {"", "1", ""},
		"unknown":                            {"2", "", ""},
	} {
		d, err := job.Diff(&nusav1.JobDiffRequest{From: c.from, To: c.to})
		if c.want == "" {
			if status.Code(err) != codes.NotFound {
				t.Errorf("%s: %v, %v", name, d, err)
			}
			continue
		}
		if got := text(d); err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

func text(d *nusav1.JobDiff) string {
	out := fmt.Sprintf("%d from %d", d.GetTo(), d.GetFrom())
	for _, l := range d.GetLines() {
		out += ": " + l.GetOld() + " → " + l.GetNew()
	}
	return out
}

// TestRetryOfRevert: a retry with the same key returns what the first request did, though the version that it made has
// changed which version ran completely before the present one.
func TestRetryOfRevert(t *testing.T) {
	for name, c := range map[string]struct {
		job  *jobhistory.Job // after the first request
		used string          // the image of the request that used the key, which made version 3
		want string
	}{
		"the first target is made again": {of("a b a", version(3, "", false), version(2, "", false), version(1, "", true)), "a", "3 to 1"},
		"the target has changed":         {of("a b a", version(3, "", true), version(2, "", true), version(1, "", true)), "a", "3 to 1"},
		"another has submitted since":    {of("c a b a", version(4, "", false), version(3, "", false), version(2, "", true), version(1, "", true)), "a", "AlreadyExists"},
		"a key of another request":       {of("c b a", version(3, "", false), version(2, "", true), version(1, "", true)), "c", "AlreadyExists"},
	} {
		out, err := c.job.Revert(&nusav1.RevertJobRequest{IdempotencyKey: "k"}, func(req *nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) {
			if req.GetIdempotencyKey() != "k" || req.GetSpec().GetLabels()["image"] != c.used {
				return nil, status.Error(codes.AlreadyExists, "idempotency key was used for another request")
			}
			return &nusav1.SubmitResponse{Version: 3, Changed: true}, nil
		})
		got := fmt.Sprintf("%d to %d", out.GetVersion(), out.GetRevertedTo())
		if err != nil {
			got = status.Code(err).String()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestWarningsOfRevert(t *testing.T) {
	failed := &nusav1.JobVersion{Version: 2, Failed: "no node fits"}
	resp := &nusav1.SubmitResponse{Version: 4}
	for name, c := range map[string]struct {
		job  *jobhistory.Job
		to   string
		want string // "": no warning
	}{
		"it failed":                    {of("b a", version(3, "", false), failed), "", "it failed: no node fits"},
		"not known":                    {of("b a", version(3, "", false), version(2, "", false)), "", "not known to have run completely"},
		"it was asked for":             {of("b a", version(3, "", false), failed), "2", ""},
		"it ran completely":            {of("b a", version(3, "", false), version(2, "", true)), "", ""},
		"a later one is not known":     {of("c b a", version(3, "", false), version(2, "", false), version(1, "", true)), "", "`nusa job revert default/web --to 2` goes back to it"},
		"a later one failed":           {of("c b a", version(3, "", false), failed, version(1, "", true)), "", ""},
		"an earlier one is not known":  {of("c b a", version(3, "", false), version(2, "", true), version(1, "", false)), "", ""},
		"a later one has the same job": {of("a a b", version(3, "", false), version(2, "", true), version(1, "", true)), "", ""},
	} {
		out, err := c.job.Revert(&nusav1.RevertJobRequest{To: c.to}, func(*nusav1.SubmitRequest) (*nusav1.SubmitResponse, error) { return resp, nil })
		if got := strings.Join(out.GetWarnings(), "\n"); err != nil || (got != "") != (c.want != "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
	if resp.GetRevertedTo() != 0 || len(resp.GetWarnings()) > 0 {
		t.Error("the response of the submit, which others share, was changed")
	}
}
