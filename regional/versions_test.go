package regional_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// ownVersions follows the versions of one of the region's own jobs: tags, a difference, a revert, the purge. The
// region of the test has one server and no global tier.
func ownVersions(t *testing.T, w *world, ctx context.Context) {
	calls := nusav1.NewRolloutsClient(w.conn(1))
	refused := func(what string, err error, code codes.Code, text string) {
		t.Helper()
		if status.Code(err) != code || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %v with %q", what, err, code, text)
		}
	}
	history := func() []*nusav1.JobVersion {
		t.Helper()
		h, err := calls.History(ctx, &nusav1.JobHistoryRequest{Job: &nusav1.JobRef{Name: "api"}})
		if err != nil {
			t.Fatal(err)
		}
		return h.GetVersions()
	}
	_, err := calls.History(ctx, &nusav1.JobHistoryRequest{Job: ref("api")})
	refused("a job that does not exist", err, codes.NotFound, "api@alpha is not known")
	w.submit(1, spec("api", 2))
	w.eventually("all servers know versions", func() bool {
		v, err := calls.Tag(ctx, &nusav1.TagVersionRequest{Job: ref("api"), Tag: "first"})
		return err == nil && v.GetTag() == "first" && v.GetVersion() == 1
	})
	w.eventually("version 1 runs", func() bool { return history()[0].GetComplete() })
	changed := spec("api", 2)
	changed.Groups["web"].Tasks["main"].Resources.CpuMilli = 600
	_, err = nusav1.NewJobsClient(w.conn(1)).Submit(ctx, &nusav1.SubmitRequest{Spec: changed, Tag: "first"})
	refused("a tag that is taken", err, codes.AlreadyExists, "remove the tag from it first")
	_, err = nusav1.NewJobsClient(w.conn(1)).Submit(ctx, &nusav1.SubmitRequest{Spec: changed, Tag: "2"})
	refused("a number as a tag", err, codes.InvalidArgument, "not be a number")
	if _, err = nusav1.NewJobsClient(w.conn(1)).Submit(ctx, &nusav1.SubmitRequest{Spec: changed, Tag: "second"}); err != nil {
		t.Fatal(err)
	}
	all := history()
	if len(all) != 2 || all[0].GetVersion() != 2 || all[0].GetTag() != "second" || all[0].GetReplaced() != nil || all[0].GetComplete() {
		t.Errorf("%v", all)
	}
	if v := all[len(all)-1]; v.GetVersion() != 1 || v.GetTag() != "first" || !v.GetComplete() || v.GetBytes() == 0 ||
		v.GetReplaced().AsTime() != all[0].GetSubmitted().AsTime() {
		t.Errorf("%v", v)
	}
	d, err := calls.Diff(ctx, &nusav1.JobDiffRequest{Job: ref("api")})
	if err != nil || d.GetFrom() != 1 || d.GetTo() != 2 || len(d.GetLines()) != 1 || d.GetLines()[0].GetField() != "groups.web.tasks.main.resources.cpu" {
		t.Errorf("%v, %v", d, err)
	}
	_, err = calls.Diff(ctx, &nusav1.JobDiffRequest{Job: ref("api"), From: "7"})
	refused("an unknown version", err, codes.NotFound, "nusa job history default/api@alpha")
	_, err = calls.Tag(ctx, &nusav1.TagVersionRequest{Job: ref("api"), Version: 7, Tag: "x"})
	refused("a tag for an unknown version", err, codes.NotFound, "version 7 of job default/api@alpha is not stored")
	for _, steer := range []func(context.Context, *nusav1.ControlRolloutRequest) error{
		func(ctx context.Context, r *nusav1.ControlRolloutRequest) error {
			_, err := calls.Pause(ctx, r)
			return err
		},
		func(ctx context.Context, r *nusav1.ControlRolloutRequest) error {
			_, err := calls.Resume(ctx, r)
			return err
		},
		func(ctx context.Context, r *nusav1.ControlRolloutRequest) error {
			_, err := calls.Promote(ctx, r)
			return err
		},
		func(ctx context.Context, r *nusav1.ControlRolloutRequest) error {
			_, err := calls.Fail(ctx, r)
			return err
		},
	} {
		err := steer(ctx, &nusav1.ControlRolloutRequest{Job: ref("api")})
		refused("to steer the rollout", err, codes.InvalidArgument, "no canaries and no pauses")
		if p := rpcerr.Problems(err); len(p) != 1 || p[0].GetReason() != nusav1.Reason_REASON_UNSUPPORTED {
			t.Errorf("%v", p)
		}
	}

	_, err = calls.Revert(ctx, &nusav1.RevertJobRequest{Job: ref("api"), CheckRevision: 1})
	refused("a revert of another revision", err, codes.Aborted, "not 1")
	w.eventually("version 2 runs", func() bool { return history()[0].GetComplete() })
	revert := &nusav1.RevertJobRequest{Job: ref("api"), IdempotencyKey: "back"}
	for range 2 { // the second time is a retry
		r, err := calls.Revert(ctx, revert)
		if err != nil || r.GetVersion() != 3 || r.GetRevertedTo() != 1 || !r.GetChanged() || len(r.GetWarnings()) > 0 {
			t.Errorf("%v, %v", r, err)
		}
	}
	if all := history(); len(all) != 3 || all[0].GetTag() != "" || all[1].GetTag() != "second" {
		t.Errorf("%v", all)
	}
	if _, err := nusav1.NewJobsClient(w.conn(1)).Stop(ctx, &nusav1.StopJobRequest{Job: ref("api"), Purge: true}); err != nil {
		t.Fatal(err)
	}
	w.eventually("the job and its versions are forgotten", func() bool {
		_, err := calls.History(ctx, &nusav1.JobHistoryRequest{Job: ref("api")})
		return status.Code(err) == codes.NotFound
	})
	trail, err := nusav1.NewAuditClient(w.conn(1)).List(ctx, &nusav1.ListAuditRequest{Verb: "tag"})
	if err != nil || len(trail.GetEntries()) == 0 || trail.GetEntries()[0].GetReason() != "tag first for version 1" {
		t.Errorf("%v, %v", trail.GetEntries(), err)
	}
}
