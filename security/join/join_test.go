package join_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/roster"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func id(path string) identity.ID {
	out, err := identity.ParsePath("f", path)
	if err != nil {
		panic(err)
	}
	return out
}

// record is that of the token for agents gpu-* of the pool gpu in jakarta.
func record() *join.Record {
	return &join.Record{ID: "a0a1a2a3", Secret: token().Hash(), Kind: identity.Agent, Region: "jakarta", Pool: "gpu", Name: "gpu-*",
		Uses: 2, Created: now.Add(-time.Hour), Expires: now.Add(time.Hour), By: "operator/jane"}
}

// world is what a server knows, and a request that may join.
type world struct {
	s   join.Snapshot
	r   join.Request
	now time.Time
}

func newWorld() *world {
	return &world{
		s:   join.Snapshot{Federation: "f", Region: "jakarta", Grace: join.DefaultGrace, Token: record()},
		r:   join.Request{Token: token(), ID: id("region/jakarta/agent/gpu-1"), Key: join.HashOf([]byte("gpu-1")), Address: netip.MustParseAddr("10.0.0.1")},
		now: now,
	}
}

func (w *world) register(address, pool string) {
	n := &roster.Node{Name: w.r.ID.Name, Pool: pool}
	if address != "" {
		n.Address = netip.MustParseAddr(address)
	}
	w.s.Node = n
}

func (w *world) noToken(p join.Policy) { w.r.Token, w.s.Token, w.s.Policy = join.Token{}, nil, p }

func (w *world) asServer() {
	w.r.ID = id("region/jakarta/server/gpu-1")
	w.s.Token.Kind, w.s.Token.Pool = identity.Server, ""
}

// asOperator makes a record that of a token for an operator.
func asOperator(r *join.Record) {
	r.Kind, r.Name, r.Region, r.Pool, r.Uses = identity.Operator, "jane", "", "", 1
}

func (w *world) asOperator() {
	asOperator(w.s.Token)
	w.r.ID, w.s.Region = id("operator/jane"), ""
}

func (w *world) owner(key string, end time.Time) {
	w.s.Member = &join.Member{Key: join.HashOf([]byte(key)), NotAfter: end}
}

func (w *world) condition(f func(*join.Request) (bool, error)) { w.s.Condition, w.s.Admits = "c", f }

// TestDecide: each row changes the world of one request. want is a cause, or "pool POOL" for a
// join.
func TestDecide(t *testing.T) {
	for name, c := range map[string]struct {
		change     func(*world)
		want, text string
	}{
		"a token":                     {func(*world) {}, "pool gpu", ""},
		"a server":                    {func(w *world) { w.asServer() }, "pool ", ""},
		"the global tier":             {func(w *world) { w.asServer(); w.s.Region = "" }, "pool ", ""},
		"any pool":                    {func(w *world) { w.s.Token.Pool = ""; w.r.Pool = "x" }, "pool x", ""},
		"no pool":                     {func(w *world) { w.s.Token.Pool = "" }, "pool ", ""},
		"no name":                     {func(w *world) { w.r.ID.Name = "../x" }, "bad_name", "not a name of a member"},
		"an operator":                 {func(w *world) { w.asOperator() }, "pool ", ""},
		"an operator's new machine":   {func(w *world) { w.asOperator(); w.owner("other", now.Add(time.Hour)) }, "pool ", ""},
		"another operator":            {func(w *world) { w.asOperator(); w.r.ID = id("operator/joe") }, "other_name", `names like "jane"`},
		"an operator, at a region":    {func(w *world) { w.asOperator(); w.s.Region = "jakarta" }, "other_region", "operators join at a global server"},
		"an operator, open":           {func(w *world) { w.noToken(join.Open); w.r.ID = id("operator/jane"); w.s.Region = "" }, "no_token", ""},
		"an operator, agent's token":  {func(w *world) { w.r.ID = id("operator/jane"); w.s.Region = "" }, "other_role", "has the role agent"},
		"an agent, operator's token":  {func(w *world) { w.asOperator(); w.r.ID = id("region/jakarta/server/jane") }, "other_role", "has the role operator"},
		"a banned operator":           {func(w *world) { w.asOperator(); w.s.Banned = "stolen" }, "banned", "stolen"},
		"a global server":             {func(w *world) { w.r.ID = id("global/g1") }, "bad_name", "nusa ca issue"},
		"an authority":                {func(w *world) { w.r.ID = id("region/jakarta") }, "bad_name", "nusa ca issue"},
		"another federation":          {func(w *world) { w.r.ID.Federation = "g" }, "other_region", "federation g"},
		"another region's server":     {func(w *world) { w.s.Region = "eu" }, "other_region", "use the addresses of region jakarta"},
		"no token":                    {func(w *world) { w.noToken(join.WithToken) }, "no_token", "nusa token create"},
		"an unknown token":            {func(w *world) { w.s.Token = nil }, "unknown_token", "join token a0a1a2a3 is not known"},
		"a wrong secret":              {func(w *world) { w.s.Token.Secret[0]++ }, "unknown_token", "join token a0a1a2a3 is not known"},
		"an empty record":             {func(w *world) { w.s.Token = &join.Record{} }, "unknown_token", ""},
		"the record of another":       {func(w *world) { w.s.Token.ID = "00000000" }, "unknown_token", ""},
		"wrong and revoked":           {func(w *world) { w.s.Token.Secret[0]++; w.s.Token.Revoked = true; w.s.Banned = "x" }, "unknown_token", ""},
		"revoked":                     {func(w *world) { w.s.Token.Revoked = true }, "revoked", "use another"},
		"at its end":                  {func(w *world) { w.now = w.s.Token.Expires }, "expired", "ended at 2026-11-23T13:00:00Z"},
		"just before its end":         {func(w *world) { w.now = w.s.Token.Expires.Add(-1) }, "pool gpu", ""},
		"a clock set back":            {func(w *world) { w.now = w.s.Token.Created.Add(-6 * time.Minute) }, "clock", "check the clocks"},
		"clocks that differ":          {func(w *world) { w.now = w.s.Token.Created.Add(-4 * time.Minute) }, "pool gpu", ""},
		"a token for servers":         {func(w *world) { w.s.Token.Kind = identity.Server }, "other_role", "has the role regional server"},
		"an agent's token":            {func(w *world) { w.r.ID = id("region/jakarta/server/gpu-1") }, "other_role", "has the role agent"},
		"a token of another region":   {func(w *world) { w.s.Token.Region = "eu" }, "other_region", "is for region eu"},
		"another region, global tier": {func(w *world) { w.asServer(); w.s.Region, w.r.ID.Region = "", "eu" }, "other_region", "is for region jakarta"},
		"an agent, global tier":       {func(w *world) { w.s.Region = "" }, "other_region", "use the addresses of the servers of region jakarta"},
		"an agent, global tier, open": {func(w *world) { w.noToken(join.Open); w.s.Region = "" }, "other_region", "agents join in their region"},
		"another name":                {func(w *world) { w.r.ID.Name = "cpu-1" }, "other_name", `names like "gpu-*"`},
		"another pool":                {func(w *world) { w.r.Pool = "cpu" }, "other_pool", "is for pool gpu, not for pool cpu"},
		"a bad pool":                  {func(w *world) { w.s.Token.Pool = ""; w.r.Pool = "../x" }, "other_pool", "its name has"},
		"a server with a pool":        {func(w *world) { w.asServer(); w.r.Pool = "gpu" }, "other_pool", "only agents have a pool"},
		"used up":                     {func(w *world) { w.s.Token.Uses = 0 }, "used_up", "make a new one"},
		"the last use":                {func(w *world) { w.s.Token.Uses = 1 }, "pool gpu", ""},
		"the answer was lost": {func(w *world) {
			w.s.Token.Uses, w.s.Token.Recent = 0, []join.Use{{Name: "gpu-1", Key: w.r.Key}}
		}, "pool gpu", ""},
		"replayed with another key": {func(w *world) {
			w.s.Token.Uses, w.s.Token.Recent = 0, []join.Use{{Name: "gpu-1", Key: join.HashOf([]byte("thief"))}}
		}, "used_up", ""},
		"replayed with another name": {func(w *world) {
			w.s.Token.Uses, w.s.Token.Recent = 0, []join.Use{{Name: "gpu-2", Key: w.r.Key}}
		}, "used_up", ""},
		"open":              {func(w *world) { w.noToken(join.Open) }, "pool ", ""},
		"open, a bad token": {func(w *world) { w.s.Policy = join.Open; w.s.Token = nil }, "unknown_token", ""},
		"open, a server":    {func(w *world) { w.noToken(join.Open); w.r.ID = id("region/jakarta/server/s1") }, "no_token", ""},
		"an unknown policy": {func(w *world) { w.noToken(9) }, "no_token", ""},
		"registered":        {func(w *world) { w.noToken(join.Registered); w.register("10.0.0.1", "web") }, "pool web", ""},
		"registered, an IPv4 in 6": {func(w *world) {
			w.noToken(join.Registered)
			w.register("10.0.0.1", "")
			w.r.Address = netip.MustParseAddr("::ffff:10.0.0.1")
		}, "pool ", ""},
		"registered, a server": {func(w *world) {
			w.noToken(join.Registered)
			w.register("", "")
			w.r.ID = id("region/jakarta/server/gpu-1")
		}, "no_token", ""},
		"not registered":              {func(w *world) { w.noToken(join.Registered) }, "not_registered", "register the node"},
		"both":                        {func(w *world) { w.s.Policy = join.RegisteredWithToken; w.register("", "gpu") }, "pool gpu", ""},
		"both, not registered":        {func(w *world) { w.s.Policy = join.RegisteredWithToken }, "not_registered", "token+registered"},
		"both, no token":              {func(w *world) { w.noToken(join.RegisteredWithToken); w.register("", "") }, "no_token", ""},
		"both, a server":              {func(w *world) { w.asServer(); w.s.Policy = join.RegisteredWithToken }, "pool ", ""},
		"another address":             {func(w *world) { w.register("10.0.0.2", "") }, "other_address", "is registered with 10.0.0.2"},
		"an unknown address":          {func(w *world) { w.register("10.0.0.2", ""); w.r.Address = netip.Addr{} }, "other_address", ""},
		"registered in a pool":        {func(w *world) { w.register("", "web") }, "other_pool", "is for pool gpu, not for pool web"},
		"asks for another pool":       {func(w *world) { w.noToken(join.Registered); w.register("", "web"); w.r.Pool = "gpu" }, "other_pool", "is registered for pool web"},
		"banned":                      {func(w *world) { w.s.Banned = "stolen" }, "banned", "is banned (stolen)"},
		"the same member":             {func(w *world) { w.owner("gpu-1", now.Add(time.Hour)) }, "pool gpu", ""},
		"the name of another":         {func(w *world) { w.owner("other", now.Add(time.Hour)) }, "name_taken", "if that machine is gone run 'nusa node remove gpu-1'"},
		"the name of a server":        {func(w *world) { w.asServer(); w.owner("other", now.Add(time.Hour)) }, "name_taken", "'nusa region server remove jakarta/gpu-1'"},
		"removed":                     {func(w *world) { w.s.Removed = now.Add(-time.Hour) }, "removed", "join again with a new token"},
		"removed and banned":          {func(w *world) { w.s.Removed, w.s.Banned = now.Add(-time.Hour), "stolen" }, "banned", "'nusa node unban gpu-1'"},
		"a server of a banned region": {func(w *world) { w.asServer(); w.s.Banned = "its region: x" }, "banned", "'nusa region unban jakarta'"},
		"the name of one in grace":    {func(w *world) { w.owner("other", now.Add(-join.DefaultGrace)) }, "name_taken", ""},
		"the name of one long gone":   {func(w *world) { w.owner("other", now.Add(-join.DefaultGrace-1)) }, "pool gpu", ""},
		"a condition":                 {func(w *world) { w.condition(func(*join.Request) (bool, error) { return true, nil }) }, "pool gpu", ""},
		"a condition that fails":      {func(w *world) { w.condition(func(*join.Request) (bool, error) { return true, errors.New("no field") }) }, "not_admitted", "no field"},
		"a condition in the way":      {func(w *world) { w.condition(func(*join.Request) (bool, error) { return false, nil }) }, "not_admitted", "does not hold"},
		"a condition, not compiled":   {func(w *world) { w.condition(nil) }, "not_admitted", "not compiled"},
	} {
		w := newWorld()
		c.change(w)
		before := 0
		if w.s.Token != nil {
			before = w.s.Token.Uses
		}
		g, refusal := join.Decide(&w.s, &w.r, w.now)
		got, text := "pool "+g.Pool, ""
		if refusal != nil {
			got, text = string(refusal.Cause), refusal.Error()
		}
		if got != c.want || !strings.Contains(text, c.text) {
			t.Errorf("%s: %s: %s, want %s: %s", name, got, text, c.want, c.text)
		}
		if refusal == nil && (g.ID != w.r.ID || (g.Token == nil) != w.r.Token.IsZero()) {
			t.Errorf("%s: %+v", name, g)
		}
		if w.s.Token != nil && w.s.Token.Uses != before {
			t.Errorf("%s: Decide changed the record", name)
		}
		if strings.Contains(text, secret) {
			t.Errorf("%s: the refusal has the secret", name)
		}
	}
}

// TestUses: a token lets exactly as many members join as it has uses, however often each asks.
func TestUses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		w.s.Token.Uses = rapid.IntRange(1, 5).Draw(t, "uses")
		uses, joined := w.s.Token.Uses, map[int]bool{}
		for range rapid.IntRange(0, 20).Draw(t, "requests") {
			n := rapid.IntRange(0, 7).Draw(t, "member")
			w.r.ID.Name, w.r.Key = fmt.Sprintf("gpu-%d", n), join.HashOf([]byte{byte(n)})
			g, refusal := join.Decide(&w.s, &w.r, now)
			if want := joined[n] || len(joined) < uses; (refusal == nil) != want {
				t.Fatalf("member %d after %d of %d: %v", n, len(joined), uses, refusal)
			}
			if refusal == nil {
				joined[n] = true
				w.s.Token = g.Token
			}
		}
		if w.s.Token.Uses != uses-len(joined) || len(w.s.Token.Recent) != len(joined) {
			t.Fatalf("%d uses are left, and %d of %d joined", w.s.Token.Uses, len(joined), uses)
		}
	})
}

// TestRecent: the list of the last joins is bounded.
func TestRecent(t *testing.T) {
	w := newWorld()
	w.s.Token.Uses = 1000
	for n := range 500 {
		w.r.ID.Name = fmt.Sprintf("gpu-%d", n)
		g, refusal := join.Decide(&w.s, &w.r, now)
		if refusal != nil {
			t.Fatal(refusal)
		}
		w.s.Token = g.Token
	}
	if len(w.s.Token.Recent) != 64 || w.s.Token.Uses != 500 || w.s.Token.Recent[63].Name != "gpu-499" {
		t.Errorf("%d joins are stored, %d uses are left", len(w.s.Token.Recent), w.s.Token.Uses)
	}
}

func TestRenew(t *testing.T) {
	begin, end := now.Add(-24*time.Hour), now.Add(time.Hour)
	for name, c := range map[string]struct {
		change func(*world, *join.Renewal)
		want   join.Cause
		text   string
	}{
		"in time":               {func(*world, *join.Renewal) {}, "", ""},
		"the policy has no say": {func(w *world, _ *join.Renewal) { w.s.Policy = join.Registered; w.s.Token = nil }, "", ""},
		"in the grace":          {func(w *world, _ *join.Renewal) { w.now = end.Add(join.DefaultGrace - 1) }, "", ""},
		"after the grace":       {func(w *world, _ *join.Renewal) { w.now = end.Add(join.DefaultGrace) }, join.Expired, "join again with a new token"},
		"no grace":              {func(w *world, _ *join.Renewal) { w.s.Grace = 0; w.now = end.Add(1) }, join.Expired, ""},
		"no grace, at the end":  {func(w *world, _ *join.Renewal) { w.s.Grace = 0; w.now = end }, "", ""},
		"banned":                {func(w *world, _ *join.Renewal) { w.s.Banned = "stolen" }, join.Banned, "stolen"},
		"banned in the grace":   {func(w *world, _ *join.Renewal) { w.s.Banned = "stolen"; w.now = end.Add(time.Hour) }, join.Banned, ""},
		"removed":               {func(w *world, _ *join.Renewal) { w.s.Removed = now.Add(-time.Hour) }, join.Removed, "join again with a new token"},
		"from the future":       {func(w *world, _ *join.Renewal) { w.now = begin.Add(-6 * time.Minute) }, join.Clock, "check the clocks"},
		"its own key":           {func(w *world, r *join.Renewal) { w.s.Member = &join.Member{Key: r.Key, NotAfter: end} }, "", ""},
		"the key of an old one": {func(w *world, _ *join.Renewal) { w.owner("other", end) }, join.NameTaken, "another machine"},
		"another region":        {func(_ *world, r *join.Renewal) { r.ID = id("region/eu/agent/gpu-1") }, join.OtherRegion, ""},
		"another federation":    {func(_ *world, r *join.Renewal) { r.ID.Federation = "g" }, join.OtherRegion, ""},
		"an operator":           {func(w *world, r *join.Renewal) { r.ID = id("operator/jane"); w.s.Region = "" }, "", ""},
		"an operator, a region": {func(_ *world, r *join.Renewal) { r.ID = id("operator/jane") }, join.OtherRegion, "join at a global server"},
		"an operator's old key": {func(w *world, r *join.Renewal) {
			r.ID, w.s.Region = id("operator/jane"), ""
			w.owner("new machine", end)
		}, join.NameTaken, ""},
		"a global server": {func(_ *world, r *join.Renewal) { r.ID = id("global/g1") }, join.BadName, ""},
		"the global tier": {func(w *world, _ *join.Renewal) { w.s.Region = "" }, join.OtherRegion, "the servers of region jakarta"},
	} {
		w := newWorld()
		r := join.Renewal{ID: w.r.ID, Key: w.r.Key, NotBefore: begin, NotAfter: end}
		c.change(w, &r)
		refusal := join.Renew(&w.s, &r, w.now)
		switch {
		case (refusal == nil) != (c.want == ""):
			t.Errorf("%s: %v, want %q", name, refusal, c.want)
		case refusal != nil && (refusal.Cause != c.want || !strings.Contains(refusal.Error(), c.text)):
			t.Errorf("%s: %s: %v, want %s: %s", name, refusal.Cause, refusal, c.want, c.text)
		}
	}
}

// TestRecordsOfMembersEnd: nobody needs the record of a member after its grace. The key of a removed
// member is refused for longer if the grace is short.
func TestRecordsOfMembersEnd(t *testing.T) {
	m := &join.Member{NotAfter: now}
	for _, grace := range []time.Duration{0, time.Hour, 90 * 24 * time.Hour} {
		if end := now.Add(grace); m.Over(grace, end) || !m.Over(grace, end.Add(1)) || m.RefusedUntil(grace) != now.Add(max(grace, join.DefaultGrace)) {
			t.Errorf("grace %s: over %v, refused until %s", grace, m.Over(grace, end.Add(1)), m.RefusedUntil(grace))
		}
	}
}

func TestRecordCheck(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*join.Record)
		want   string
	}{
		"valid":           {func(*join.Record) {}, ""},
		"a server's":      {func(r *join.Record) { r.Kind, r.Pool = identity.Server, "" }, ""},
		"no id":           {func(r *join.Record) { r.ID = "" }, "no id"},
		"no hash":         {func(r *join.Record) { r.Secret = join.Hash{} }, "no hash"},
		"an operator's":   {func(r *join.Record) { asOperator(r) }, ""},
		"two uses":        {func(r *join.Record) { asOperator(r); r.Uses = 2 }, "used once"},
		"many operators":  {func(r *join.Record) { asOperator(r); r.Name = "j*" }, "for one name"},
		"one of a region": {func(r *join.Record) { asOperator(r); r.Region = "eu" }, "for no region"},
		"one with a pool": {func(r *join.Record) { asOperator(r); r.Pool = "gpu" }, "only tokens for agents"},
		"a global one's":  {func(r *join.Record) { r.Kind = identity.Global }, "not for the role global server"},
		"no region":       {func(r *join.Record) { r.Region = "" }, "name of a region"},
		"a server's pool": {func(r *join.Record) { r.Kind = identity.Server }, "only tokens for agents"},
		"a bad pool":      {func(r *join.Record) { r.Pool = "A" }, `pool "A"`},
		"no name":         {func(r *join.Record) { r.Name = "" }, "name: pattern"},
		"no use":          {func(r *join.Record) { r.Uses = 0 }, "0 uses"},
		"too many uses":   {func(r *join.Record) { r.Uses = join.MaxUses + 1 }, "100001 uses"},
		"no life":         {func(r *join.Record) { r.Expires = r.Created }, "a life of 0s"},
		"no end":          {func(r *join.Record) { r.Expires = time.Time{} }, "a life of -"},
		"a life too long": {func(r *join.Record) { r.Expires = r.Created.Add(join.MaxLife + 1) }, "at most 8760h"},
	} {
		r := record()
		c.change(r)
		err := r.Check()
		if (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, join.ErrRecord) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestPolicies(t *testing.T) {
	for _, p := range []join.Policy{join.WithToken, join.Registered, join.RegisteredWithToken, join.Open} {
		if got, err := join.ParsePolicy(p.String()); err != nil || got != p {
			t.Errorf("%s: %v, %v", p, got, err)
		}
	}
	if p, err := join.ParsePolicy("all"); err == nil || p != join.WithToken || !strings.Contains(err.Error(), "open") {
		t.Errorf("%v, %v", p, err)
	}
}
