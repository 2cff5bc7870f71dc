package rest_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/rest"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// storedJob returns one job.
type storedJob struct {
	nusav1.UnimplementedJobsServer
	spec *nusav1.JobSpec
}

func (s storedJob) Get(context.Context, *nusav1.GetJobRequest) (*nusav1.Job, error) {
	return &nusav1.Job{Spec: s.spec, Revision: 7}, nil
}

// TestJobFile: a job can be read as its file, which is the same job again, with the ETag for a submit.
func TestJobFile(t *testing.T) {
	spec, err := job.Parse([]byte(jobYAML), "job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	job.Default(spec)
	s, err := serve.Open(t.Context(), serve.Options{Net: network.Host(), HTTPAddr: "127.0.0.1:0", Grace: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	nusav1.RegisterJobsServer(s, storedJob{spec: spec})
	if err := rest.Mount(s, rest.Options{Plain: true}); err != nil {
		t.Fatal(err)
	}
	start(t, s)
	url := "http://" + s.HTTPAddr() + "/v1/jobs/default/a"
	for accept, yaml := range map[string]bool{
		"application/yaml": true, "text/yaml;q=1, application/json": true, "application/json, application/yaml": false, "*/*": false, "a/b/c": false,
	} {
		resp, body := get(t, http.DefaultClient, url, "Accept", accept)
		kind := resp.Header.Get("Content-Type")
		if (kind == "application/yaml") != yaml || resp.Header.Get("ETag") != `"7"` || !strings.Contains(strings.Join(resp.Header.Values("Vary"), ","), "Accept") {
			t.Errorf("%s: %v", accept, resp.Header)
		}
		if !yaml {
			continue
		}
		again, err := job.Parse([]byte(body), "job.yaml")
		if err != nil {
			t.Fatalf("%v\n%s", err, body)
		}
		if job.Default(again); !proto.Equal(again, spec) {
			t.Errorf("the file is another job:\n%s", body)
		}
	}
	if resp, body := get(t, http.DefaultClient, url+"?what=1", "Accept", "application/yaml"); resp.StatusCode != 400 || resp.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("an error: %s %s", resp.Status, body)
	}
}
