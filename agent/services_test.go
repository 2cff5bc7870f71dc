package agent

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/discovery"
)

// TestServicesOverHTTP: the agent's HTTP server lists and resolves services, and names their instances as
// targets for Prometheus. A service that does not exist is an empty list of targets, and not an error, because
// Prometheus keeps its targets after an error.
func TestServicesOverHTTP(t *testing.T) {
	s := &services{region: "jakarta", store: discovery.New(func() time.Duration { return 0 }), log: slog.New(slog.DiscardHandler)}
	s.store.SetRoster(discovery.Roster{Own: "jakarta", Regions: []discovery.Region{{Name: "jakarta"}}})
	instances := []*catalog.Instance{
		{Namespace: "default", Service: "web", Region: "jakarta", Node: "n1", Address: "10.0.0.1", Port: 8080, Tags: []string{"blue", "v2"}, Alloc: "a1", Job: "shop", Group: "front", Index: 3},
		{Namespace: "team", Service: "web", Region: "jakarta", Node: "n2", Address: "fd00::7", Port: 9000, Alloc: "a2", Job: "api", Group: "web"},
	}
	if err := s.store.Begin("jakarta", "m/1", instances); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	s.serveHTTP(mux)
	server := httptest.NewServer(mux)
	defer server.Close()
	get := func(path string, want int) string {
		t.Helper()
		resp, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != want {
			t.Fatalf("%s: %s, %v: %s", path, resp.Status, err, body)
		}
		return string(body)
	}
	targets := func(path string) (out []discovery.TargetGroup) {
		t.Helper()
		if err := json.Unmarshal([]byte(get(path, http.StatusOK)), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if all := targets("/v1/services:http_sd"); len(all) != 2 {
		t.Errorf("the targets of all namespaces are %v", all)
	}
	blue := targets("/v1/services:http_sd?namespace=default&name=web")
	if len(blue) != 1 || blue[0].Targets[0] != "10.0.0.1:8080" || blue[0].Labels["__meta_nusa_tags"] != ",blue,v2," || blue[0].Labels["__meta_nusa_index"] != "3" {
		t.Errorf("the targets of default/web are %v", blue)
	}
	if six := targets("/v1/services:http_sd?namespace=team"); len(six) != 1 || six[0].Targets[0] != "[fd00::7]:9000" {
		t.Errorf("the targets of an IPv6 address are %v", six)
	}
	if none := strings.TrimSpace(get("/v1/services:http_sd?name=absent", http.StatusOK)); none != "[]" {
		t.Errorf("the targets of an absent service are %s", none)
	}
	if list := get("/v1/services?namespace=team", http.StatusOK); !strings.Contains(list, `"web"`) || strings.Contains(list, "default") {
		t.Errorf("the services of team are %s", list)
	}
	if first := get("/v1/services?limit=1", http.StatusOK); !strings.Contains(first, `"next_page_token"`) || strings.Contains(first, "team") {
		t.Errorf("the first page is %s", first)
	}
	if second := get("/v1/services?page_token=default/web", http.StatusOK); strings.Contains(second, `"next_page_token"`) || !strings.Contains(second, "team") {
		t.Errorf("the second page is %s", second)
	}
	get("/v1/services?limit=many", http.StatusBadRequest)
	if one := get("/v1/namespaces/default/services/web", http.StatusOK); !strings.Contains(one, "10.0.0.1") || strings.Contains(one, "fd00::7") {
		t.Errorf("default/web resolves to %s", one)
	}
	if text := get("/v1/namespaces/default/services/absent", http.StatusNotFound); !strings.Contains(text, "absent") {
		t.Errorf("the error of an absent service is %s", text)
	}
}
