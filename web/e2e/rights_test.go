//go:build integration

package e2e_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/security"
	"github.com/chromedp/chromedp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// tokenOf makes a token of one role, which also is an operator of some namespaces.
func tokenOf(t *testing.T, admin nusav1.AuthClient, role string, operates ...string) string {
	t.Helper()
	made, err := admin.CreateAccessToken(t.Context(), &nusav1.CreateAccessTokenRequest{Roles: []string{role}, Ttl: durationpb.New(patience * 100)})
	if err != nil {
		t.Fatal(err)
	}
	if len(operates) > 0 {
		bound := &nusav1.AuthBinding{Name: "operates", Role: "operator", Subjects: []string{"token/" + made.GetToken().GetAccessor()}, Namespaces: operates}
		if _, err := admin.SetBinding(t.Context(), &nusav1.SetBindingRequest{Binding: bound}); err != nil {
			t.Fatal(err)
		}
	}
	return made.GetSecret()
}

// trusting opens an address of a server with a certificate that the browser does not know.
func trusting(t *testing.T, host, address string, l look) *page {
	t.Helper()
	p := open(t, "about:blank", l)
	p.host = host
	if _, err := chromedp.Call(p.ctx, security.SetIgnoreCertificateErrors, security.SetIgnoreCertificateErrorsParams{Ignore: true}); err != nil {
		t.Fatal(err)
	}
	p.navigate(address)
	return p
}

// TestOneNamespace: the page of a user of one namespace opens the jobs, and has the jobs and the events of that
// namespace only. A user who may read neither jobs nor regions learns that, and not that there is no connection.
func TestOneNamespace(t *testing.T) {
	t.Parallel()
	pages, conn := globals(t)
	admin, address := nusav1.NewAuthClient(conn), pages[0]
	bound := &nusav1.AuthBinding{Name: "admins", Role: "admin", Subjects: []string{"operator/*"}} // who makes the tokens
	if _, err := admin.SetBinding(t.Context(), &nusav1.SetBindingRequest{Binding: bound}); err != nil {
		t.Fatal(err)
	}
	if _, err := nusav1.NewRegionsClient(conn).Define(t.Context(), &nusav1.DefineRegionRequest{Definition: &nusav1.RegionDefinition{Name: "eastus"}, CheckRevision: -1}); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"default", "pay"} {
		spec, err := job.Parse([]byte("namespace: "+namespace+"\n"+webJob), "job.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nusav1.NewJobsClient(conn).Submit(t.Context(), &nusav1.SubmitRequest{Spec: spec, CheckRevision: -1}); err != nil {
			t.Fatal(err)
		}
	}
	token := func(role, namespace string) string {
		made, err := admin.CreateAccessToken(t.Context(), &nusav1.CreateAccessTokenRequest{Roles: []string{role}, Namespaces: []string{namespace}, Ttl: durationpb.New(patience * 100)})
		if err != nil {
			t.Fatal(err)
		}
		return made.GetSecret()
	}
	host := address[len("https://"):]
	p := trusting(t, host, address+"/ui/#token="+token("submitter", "pay"), desk)
	p.see("pay/web")
	p.axe()
	if text := p.text(); strings.Contains(text, "default/web") || strings.Contains(text, "Topology") {
		t.Errorf("a user of one namespace sees %q", text)
	}
	p.click("nav a", "Events")
	p.see("job.submitted")
	if text := p.text(); strings.Contains(text, "default/web") || strings.Contains(text, "auth.changed") {
		t.Errorf("a user of one namespace sees the events %q", text)
	}
	p.navigate(address + "/ui/topology")
	p.see("may not read regions")

	none, err := admin.CreateAccessToken(t.Context(), &nusav1.CreateAccessTokenRequest{Ttl: durationpb.New(patience * 100)})
	if err != nil {
		t.Fatal(err)
	}
	p = open(t, "about:blank", desk)
	p.ignore("status of 403")
	p.host = host
	if _, err := chromedp.Call(p.ctx, security.SetIgnoreCertificateErrors, security.SetIgnoreCertificateErrorsParams{Ignore: true}); err != nil {
		t.Fatal(err)
	}
	p.navigate(address + "/ui/#token=" + none.GetSecret())
	p.see("This access token may not use the page.")
}

// canI is the path of questions about rights.
const canI = "/v1/auth:canI"

// questions counts the questions about rights.
func (p *page) questions() (n int) {
	for _, path := range p.requests() {
		if path == canI {
			n++
		}
	}
	return n
}

// TestActionsByRights: a viewer sees every action disabled, with the reason. The user of one namespace may act there
// only. One question decides for a page of a role that holds everywhere.
func TestActionsByRights(t *testing.T) {
	t.Parallel()
	pages, conn := globals(t)
	admin, address := nusav1.NewAuthClient(conn), pages[0]
	bound := &nusav1.AuthBinding{Name: "admins", Role: "admin", Subjects: []string{"operator/*"}} // who makes the tokens
	if _, err := admin.SetBinding(t.Context(), &nusav1.SetBindingRequest{Binding: bound}); err != nil {
		t.Fatal(err)
	}
	if _, err := nusav1.NewRegionsClient(conn).Define(t.Context(), &nusav1.DefineRegionRequest{Definition: &nusav1.RegionDefinition{Name: "eastus"}, CheckRevision: -1}); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"default", "web"} {
		spec, err := job.Parse([]byte("namespace: "+namespace+"\n"+webJob), "job.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nusav1.NewJobsClient(conn).Submit(t.Context(), &nusav1.SubmitRequest{Spec: spec, CheckRevision: -1}); err != nil {
			t.Fatal(err)
		}
	}
	off := func(text string) string {
		return "[...document.querySelectorAll('main button')].some(b => b.innerText === '" + text + "' && b.getAttribute('aria-disabled') === 'true' && b.title.startsWith('Not allowed: '))"
	}
	on := func(text string) string {
		return "[...document.querySelectorAll('main button')].some(b => b.innerText === '" + text + "' && !b.getAttribute('aria-disabled') && !b.disabled)"
	}
	host := address[len("https://"):]
	viewer := tokenOf(t, admin, "viewer")
	p := trusting(t, host, address+"/ui/jobs?job=default/web#token="+viewer, desk)
	p.see("default/web")
	p.wait(off("Stop"))
	p.see("Job file")
	p.axe()
	p.click("main button", "Stop")
	p.see("Not allowed: ")
	if eval[bool](p, "document.querySelector('dialog') !== null") {
		t.Error("the page asks a viewer to confirm a stop")
	}
	if n := p.questions(); n != 1 {
		t.Errorf("a page of a viewer asks %d times for rights, want once", n)
	}
	p.click("main a", "Job file")
	p.wait(off("Submit"))
	p.click("nav a", "Jobs")
	p.wait(off("New job"))
	p.click("nav a", "Federation")
	p.click("main tbody a", "eastus")
	p.wait(off("Cordon") + " && " + off("Drain"))
	p.axe()

	p = trusting(t, host, address+"/ui/jobs?job=web/web#token="+tokenOf(t, admin, "viewer", "web"), desk)
	p.see("web/web")
	p.wait(on("Stop"))
	p.wait("performance.getEntriesByType('resource').filter(r => r.name.includes('namespace=web') && r.name.includes('canI')).length === 1")
	p.see("Edit")
	p.click("nav a", "Jobs")
	p.wait(on("New job"))
	p.click("nav a", "Federation")
	p.click("main tbody a", "eastus")
	p.wait(off("Cordon"))

	p = trusting(t, host, address+"/ui/jobs?job=default/web#token="+tokenOf(t, admin, "admin"), desk)
	p.see("default/web")
	p.wait("performance.getEntriesByType('resource').some(r => r.name.includes('canI') && r.responseEnd > 0)")
	p.wait(on("Stop"))
	p.click("main button", "Stop")
	p.wait("document.querySelector('dialog[open]') !== null")
	if all := p.requests(); slices.Contains(all, "/v1/auth:whoAmI") {
		t.Errorf("the page asks who the user is: %v", all)
	}
}
