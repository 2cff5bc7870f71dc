package state

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/internal/notify"
	"github.com/nusa-scheduler/nusa/internal/origins"
	"github.com/nusa-scheduler/nusa/internal/sets"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// Origins holds the stored origin records and the table that is made from them. The state's lock
// guards them.
type Origins struct {
	// Table is nil while no record is stored.
	Table   *origins.Table
	records map[string]originRecord // by domain
}

// originRecord is a stored record and its revision. The message in rec has no revision.
type originRecord struct {
	rec *nusav1.OriginRecord
	rev int64
}

func (o *Origins) set(domain string, rec *nusav1.OriginRecord, revision int64) {
	delete(o.records, domain)
	if rec == nil {
		return
	}
	if o.records == nil {
		o.records = map[string]originRecord{}
	}
	o.records[domain] = originRecord{rec, revision}
}

// rebuild makes the table from all records.
func (o *Origins) rebuild() error {
	all := make([]*nusav1.OriginRecord, 0, len(o.records))
	for _, stored := range o.records {
		rec := proto.CloneOf(stored.rec)
		rec.Revision = stored.rev
		all = append(all, rec)
	}
	table, err := origins.NewTable(all)
	if err != nil {
		return err
	}
	o.Table = table
	return nil
}

// Serving returns, for each domain that a near rule of the jobs names, the regions that serve the
// domain. The lock is held.
func (o *Origins) Serving(jobs []place.Job) map[string][]string {
	var out map[string][]string
	for _, j := range jobs {
		for _, g := range j.Groups {
			for _, n := range g.Regions.Near {
				if n.Domain == "" || out[n.Domain] != nil {
					continue
				}
				if out == nil {
					out = map[string][]string{}
				}
				out[n.Domain] = o.Table.ServingRegions(n.Domain)
			}
		}
	}
	return out
}

// maxUnmatched bounds the warnings about the rules of one job.
const maxUnmatched = 8

// Unmatched returns warnings about rules whose labels no region has, or whose domains no region serves. Such a rule
// has no effect, or lets the job wait. The lock is held.
func Unmatched(st *State, rules []job.Rule) (out []string) {
	left, more := maxMatches, 0
	for _, r := range rules {
		why := ""
		if r.Domain != "" {
			why = st.Origins.unserved(r.Domain)
		} else {
			why = unmet(st, selectorToPlace(r.Selector), &left)
		}
		switch {
		case why == "":
		case len(out) == maxUnmatched:
			more++
		default:
			out = append(out, r.Path+": "+why)
		}
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("%d further rules match no region", more))
	}
	return out
}

// unserved says why no region serves a domain. The text is empty if a region does.
func (o *Origins) unserved(domain string) string {
	switch {
	case len(o.Table.ServingRegions(domain)) > 0:
		return ""
	case len(o.Table.Match(domain).GetOrigins()) > 0:
		return "every origin of the domain " + domain + " is drained"
	}
	return "no region serves the domain " + domain + ": `nusa origin list` shows the domains"
}

// unmet says why no region matches a selector. The text is empty if a region does. Each comparison lowers left. Once
// left is below 0, unmet takes it that a region matches.
func unmet(st *State, s place.Selector, left *int) string {
	if slices.ContainsFunc(st.RegionNames(), func(name string) bool {
		*left -= 1 + len(s.Labels)
		return *left < 0 || s.Matches(st.Regions[name].labelled())
	}) {
		return ""
	}
	who := "no region has "
	if s.Name != "" {
		who = "region " + s.Name + " does not have "
	}
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(s.Labels)) {
		label, values := key+"="+s.Labels[key], map[string]bool{}
		for _, r := range st.Regions {
			if v, ok := r.Record.GetDefinition().GetLabels()[key]; ok {
				values[v] = true
			}
		}
		switch {
		case len(values) == 0:
			return "no region has the label " + key
		case !values[s.Labels[key]]:
			return who + label + "; known values of " + key + ": " + topo.ListNames(slices.Sorted(maps.Keys(values)))
		}
		labels = append(labels, label)
		*left -= len(st.Regions)
		if *left < 0 {
			break
		}
	}
	return who + topo.ListNames(labels)
}

// Origin returns a domain's record as the transaction leaves it, and the revision of the stored
// record. See Job.
func (t *Tx) Origin(domain string) (*nusav1.OriginRecord, int64) {
	if ch, ok := t.find(originKey(domain)); ok {
		rec, _ := ch.msg.(*nusav1.OriginRecord)
		return rec, 0
	}
	stored := t.State.Origins.records[domain]
	return stored.rec, stored.rev
}

// PutOrigin stores a record. It fails if there are too many records.
func (t *Tx) PutOrigin(rec *nusav1.OriginRecord) error {
	err := origins.CheckLimits(func(yield func(*nusav1.OriginRecord) bool) {
		for domain, stored := range t.State.Origins.records {
			if _, changed := t.find(originKey(domain)); !changed && domain != rec.GetDomain() && !yield(stored.rec) {
				return
			}
		}
		for _, ch := range t.changes {
			if other, ok := ch.msg.(*nusav1.OriginRecord); ok && other.GetDomain() != rec.GetDomain() && !yield(other) {
				return
			}
		}
		yield(rec)
	})
	if err != nil {
		return err
	}
	return t.set(txChange{key: originKey(rec.GetDomain()), msg: rec, known: t.State.Origins.records[rec.GetDomain()].rev})
}

// DeleteOrigin removes a domain's record.
func (t *Tx) DeleteOrigin(domain string) error {
	return t.set(txChange{key: originKey(domain), known: t.State.Origins.records[domain].rev})
}

// errAuth says that this server cannot read who may do what. Then it decides no call of an operator.
var errAuth = errors.New("this server cannot read the stored roles, bindings and tokens: upgrade the server")

// applyAuth stores who may do what, and makes the sessions send that to the regions. The lock is
// held.
func applyAuth(st *State, rec *nusav1.AuthSet, revision int64) {
	if rec != nil {
		rec = proto.CloneOf(rec)
		rec.Version = revision
	}
	set, err := rights.New(rec)
	if err != nil { // a newer version wrote the record
		st.Events.Add("auth.unreadable", "", "%s", err)
	}
	st.authHash = 0
	if set != nil {
		st.authHash = sets.HashAuth(set.Message())
	}
	st.AuthChanged, st.authStored = st.Clock(), true
	st.Auth.Store(set)
	for _, r := range st.Regions {
		if r.Session != nil {
			r.Session.Unsent.Auth = true
			r.Session.Wake()
		}
	}
}

// AuthHash returns the hash of who may do what. The lock is held.
func AuthHash(st *State) uint64 { return st.authHash }

// AuthOf returns who may do what as a transaction leaves that. It fails if this server cannot read
// that.
func AuthOf(t *Tx) (*rights.Set, error) {
	if ch, ok := t.find(authKey); ok {
		rec, _ := ch.msg.(*nusav1.AuthSet)
		return rights.New(rec)
	}
	set := t.State.Auth.Load()
	if set == nil {
		return nil, errAuth
	}
	return set, nil
}

// PutAuth stores who may do what.
func PutAuth(t *Tx, set *rights.Set) error {
	rec := proto.CloneOf(set.Message())
	rec.Version = 0
	return t.set(txChange{key: authKey, msg: rec, known: t.State.Auth.Load().Message().GetVersion()})
}

// AuthCopy is what a region has stored of who may do what. The zero Hash means that this is unknown,
// or that the region stores nothing.
type AuthCopy struct {
	Hash    uint64
	Version int64
}

// addAuth adds the age of the region's copy of who may do what. The lock is held.
func addAuth(out *nusav1.Region, r *Region, see Sight, silent time.Duration) {
	if r.Auth.Hash == 0 {
		return
	}
	age := time.Duration(0)
	if r.Session == nil {
		age = silent
	}
	if r.Auth.Hash != see.st.authHash {
		age = max(age, see.now-see.st.AuthChanged)
	}
	out.PolicyVersion, out.PolicyAge = r.Auth.Version, durationpb.New(age)
}

// MaxWebhooks bounds the webhooks of a federation.
const MaxWebhooks = 256

// ErrTooManyWebhooks says that there are MaxWebhooks webhooks.
var ErrTooManyWebhooks = fmt.Errorf("there are %d webhooks, the most that are allowed: remove one", MaxWebhooks)

// Webhooks are the stored webhooks, and what was delivered to their endpoints. The state's lock guards
// the maps. The records are never changed in place.
type Webhooks struct {
	Stored   map[string]StoredWebhook           // by name
	Progress map[string]*nusav1.WebhookProgress // by name
	// Changed wakes the delivery when a record has changed.
	Changed notify.Signal
	// Alarm is what an operator has to do about webhooks. "" means nothing.
	Alarm string
}

// StoredWebhook is the record of a webhook and its revision.
type StoredWebhook struct {
	*nusav1.WebhookRecord
	Revision int64
}

func applyWebhook(st *State, name string, rec *nusav1.WebhookRecord, revision int64) {
	hooks := &st.Webhooks
	_, had := hooks.Stored[name]
	st.Room.Count(had, rec != nil)
	delete(hooks.Stored, name)
	if rec != nil {
		if hooks.Stored == nil {
			hooks.Stored = map[string]StoredWebhook{}
		}
		hooks.Stored[name] = StoredWebhook{rec, revision}
	}
	hooks.Changed.Notify()
}

func applyProgress(st *State, name string, rec *nusav1.WebhookProgress) {
	hooks := &st.Webhooks
	_, had := hooks.Progress[name]
	st.Room.Count(had, rec != nil)
	delete(hooks.Progress, name)
	if rec != nil {
		if hooks.Progress == nil {
			hooks.Progress = map[string]*nusav1.WebhookProgress{}
		}
		hooks.Progress[name] = rec
	}
}

// WebhookOf returns the record of a webhook as the transaction leaves it, and the revision of the
// stored record. See Job.
func WebhookOf(t *Tx, name string) (*nusav1.WebhookRecord, int64) {
	if ch, ok := t.find(webhookPrefix + name); ok {
		rec, _ := ch.msg.(*nusav1.WebhookRecord)
		return rec, 0
	}
	stored := t.State.Webhooks.Stored[name]
	return stored.WebhookRecord, stored.Revision
}

// PutWebhook stores a webhook. It fails if there are too many.
func PutWebhook(t *Tx, rec *nusav1.WebhookRecord) error {
	name := rec.GetWebhook().GetName()
	count := len(t.State.Webhooks.Stored)
	for _, ch := range t.changes {
		if other, ok := strings.CutPrefix(ch.key, webhookPrefix); ok && other != name {
			if _, stored := t.State.Webhooks.Stored[other]; stored && !ch.puts() {
				count--
			} else if !stored && ch.puts() {
				count++
			}
		}
	}
	known, stored := t.State.Webhooks.Stored[name]
	if !stored && count >= MaxWebhooks {
		return ErrTooManyWebhooks
	}
	return t.set(txChange{key: webhookPrefix + name, msg: rec, known: known.Revision})
}

// DeleteWebhook removes a webhook and what was delivered to its endpoint.
func DeleteWebhook(t *Tx, name string) error {
	if err := t.deleteUnchecked(progressPrefix + name); err != nil {
		return err
	}
	return t.set(txChange{key: webhookPrefix + name, known: t.State.Webhooks.Stored[name].Revision})
}

// PutProgress stores what was delivered to the endpoint of a webhook that exists.
func PutProgress(t *Tx, name string, rec *nusav1.WebhookProgress) error {
	return t.putUnchecked(progressPrefix+name, rec)
}

// SetObjectAlarm notes the alarm about the objects of a kind, or that there is none. Events say when an alarm begins
// and ends. It reports whether the text is new.
func SetObjectAlarm(st *State, kind, text string) (fresh bool) {
	st.Lock()
	defer st.Unlock()
	was := st.ObjectAlarms[kind]
	if st.ObjectAlarms == nil {
		st.ObjectAlarms = map[string]string{}
	}
	st.ObjectAlarms[kind] = text
	if text == "" {
		delete(st.ObjectAlarms, kind)
	}
	switch {
	case text != "" && was == "":
		st.Events.Add("server.alarm", "", "%s", text)
	case text == "" && was != "":
		st.Events.Add("server.alarm_over", "", "%s", was)
	}
	return text != "" && text != was
}
