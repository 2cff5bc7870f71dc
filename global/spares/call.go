package spares

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/nusa-scheduler/nusa/global/spares/step"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const jsonType = "application/json"

// provision is the body of a request to a provisioner. The variables of GitLab, of AWX and of a program
// have the same values.
type provision struct {
	Type string `json:"type"`
	// Key is the same in each attempt of a request.
	Key         string            `json:"key"`
	Spare       string            `json:"spare"`
	Namespace   string            `json:"namespace"`
	Pool        string            `json:"pool"`
	Count       int               `json:"count"`
	Regions     []string          `json:"regions,omitempty"`
	CPU         int64             `json:"cpu_milli,omitempty"`
	Memory      int64             `json:"memory_bytes,omitempty"`
	Disk        int64             `json:"disk_bytes,omitempty"`
	Constraints []string          `json:"constraints,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Deadline    time.Time         `json:"deadline"`
}

// prepared is the body of a callback.
type prepared struct {
	Type      string         `json:"type"`
	Spare     string         `json:"spare"`
	Namespace string         `json:"namespace"`
	Pool      string         `json:"pool"`
	Hosts     []preparedHost `json:"hosts"`
}

type preparedHost struct {
	Name        string `json:"name"`
	Address     string `json:"address"`
	Region      string `json:"region"`
	Reservation string `json:"reservation"`
}

func encodeJSON(v any) []byte {
	text, _ := json.Marshal(v) // cannot fail: texts, numbers and a time
	return text
}

// ask makes one request to the provisioner of a spare.
func (b *Book) ask(ctx context.Context, rec *nusav1.SpareRecord, a step.Ask) step.Result {
	s := rec.GetSpare()
	req := s.GetRequest()
	p, ok := b.provisioners.Get(req.GetProvisioner())
	if !ok {
		return step.Result{Err: fmt.Sprintf("there is no provisioner %q", req.GetProvisioner()), Final: true}
	}
	body := provision{
		Type: "nusa.spare.provision", Key: s.GetId() + "-" + a.Key, Spare: s.GetId(), Namespace: req.GetNamespace(), Pool: req.GetPool(), Count: a.Count, Regions: req.GetRegions(),
		CPU: req.GetCpuMilli(), Memory: req.GetMemoryBytes(), Disk: req.GetDiskBytes(), Constraints: req.GetConstraints(), Labels: req.GetLabels(), Deadline: s.GetDeadline().AsTime(),
	}
	timeout := defaultTimeout
	if d := p.GetProvisioner().GetTimeout().AsDuration(); d > 0 {
		timeout = d
	}
	if c := p.GetProvisioner().GetCommand(); c != nil {
		return runProgram(ctx, b.cfg.Programs[c.GetProgram()], c.GetProgram(), body, timeout)
	}
	m, err := messageOf(p, body)
	if err != nil {
		return step.Result{Err: err.Error(), Final: true}
	}
	return b.send(ctx, m, timeout)
}

// messageOf returns the request to a provisioner that is called by HTTP.
func messageOf(p *nusav1.ProvisionerRecord, body provision) (webhook.Message, error) {
	m := webhook.Message{ID: body.Key, ContentType: jsonType, Header: map[string]string{"Idempotency-Key": body.Key}}
	switch kind := p.GetProvisioner().GetKind().(type) {
	case *nusav1.Provisioner_Webhook:
		secret, err := webhook.ParseSecret(p.GetSecret())
		if err != nil {
			return m, err
		}
		m.URL, m.Body, m.Secrets = kind.Webhook.GetUrl(), encodeJSON(body), []webhook.Secret{secret}
	case *nusav1.Provisioner_Gitlab:
		form := url.Values{"token": {p.GetSecret()}, "ref": {kind.Gitlab.GetRef()}}
		for _, v := range variables(body) {
			form.Set("variables["+v[0]+"]", v[1])
		}
		m.URL, m.Body, m.ContentType = kind.Gitlab.GetUrl(), []byte(form.Encode()), "application/x-www-form-urlencoded"
	case *nusav1.Provisioner_Awx:
		extra := map[string]string{}
		for _, v := range variables(body) {
			extra[v[0]] = v[1]
		}
		m.URL, m.Body = kind.Awx.GetUrl(), encodeJSON(map[string]any{"extra_vars": extra})
		m.Header["Authorization"] = "Bearer " + p.GetSecret()
	default:
		return m, fmt.Errorf("this server does not know the kind of provisioner %q", p.GetProvisioner().GetName())
	}
	return m, nil
}

// variables returns a request as names and values.
func variables(p provision) [][2]string {
	return [][2]string{
		{"NUSA_KEY", p.Key}, {"NUSA_SPARE", p.Spare}, {"NUSA_NAMESPACE", p.Namespace}, {"NUSA_POOL", p.Pool}, {"NUSA_COUNT", strconv.Itoa(p.Count)},
		{"NUSA_DEADLINE", p.Deadline.Format(time.RFC3339)}, {"NUSA_REQUEST", string(encodeJSON(p))},
	}
}

// notify makes one request to the upgrade controller.
func (b *Book) notify(ctx context.Context, rec *nusav1.SpareRecord, n step.Notify) step.Result {
	s := shown(rec)
	secret, err := webhook.ParseSecret(rec.GetSecret())
	if err != nil {
		return step.Result{Err: err.Error(), Final: true}
	}
	body := prepared{Type: "nusa.spare.prepared", Spare: s.GetId(), Namespace: s.GetRequest().GetNamespace(), Pool: s.GetRequest().GetPool()}
	for _, h := range s.GetHosts() {
		if h.GetState() == step.Held.String() {
			body.Hosts = append(body.Hosts, preparedHost{h.GetNode(), h.GetAddress(), h.GetRegion(), h.GetReservation()})
		}
	}
	key := s.GetId() + "-" + n.Key
	return b.send(ctx, webhook.Message{
		URL: s.GetRequest().GetCallbackUrl(), ID: key, ContentType: jsonType, Body: encodeJSON(body), Secrets: []webhook.Secret{secret}, Header: map[string]string{"Idempotency-Key": key},
	}, defaultTimeout)
}

// send makes one request by HTTP.
func (b *Book) send(ctx context.Context, m webhook.Message, timeout time.Duration) step.Result {
	client := webhook.NewClient(b.cfg.Policy, 1)
	defer client.Close()
	m.At = time.Now()
	return resultOf(client.Send(ctx, m, timeout))
}

// resultOf returns what a response means. Most statuses 4xx say that the request itself is wrong, so no
// other attempt follows.
func resultOf(resp webhook.Response) step.Result {
	out := step.Result{Err: resp.Err, After: resp.RetryAfter}
	switch resp.Status {
	case 408, 409, 425, 429:
	default:
		out.Final = resp.Status >= 300 && resp.Status <= 499
	}
	return out
}
