package network

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/history"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/origin"
)

// OriginCommand returns the command `nusa origin`.
func OriginCommand() *cobra.Command {
	s := &cli.Settings{}
	c := cli.Noun("origin", "Set which regions serve a domain, and choose one for a client",
		originSetCommand(s), originListCommand(s), originRemoveCommand(s), originResolveCommand(s))
	s.Bind(c)
	return c
}

// originOptions holds the flags of `nusa origin set`.
type originOptions struct {
	file       string
	regions    []string
	drained    []string
	percentile int
	maxRTT     time.Duration
	relays     int
	noGuesses  bool
	minGain    float64
	check      int64
}

func originSetCommand(s *cli.Settings) *cobra.Command {
	o := originOptions{}
	c := &cobra.Command{
		Use: "set [DOMAIN]", Short: "Store which regions serve a domain, replacing what was there", Args: cli.Positional("[DOMAIN]"),
		Long: `Stores the record of a domain, or of every name below one (*.example.com), from
flags or from a file of records separated by --- (- is standard input). All are
checked before the first is sent. An origin of weight 2 counts as half as far away.`,
		Example: `  nusa origin set www.example.com --region westeurope --region japaneast:2
  nusa origin set '*.example.com' --region eastus=192.0.2.7:443 --max-rtt 80ms
  nusa origin set -f examples/origins.yaml`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			records, err := o.records(c, args)
			if err != nil {
				return err
			}
			return setOrigins(c, records, o.check)
		}),
	}
	f := c.Flags()
	f.StringVarP(&o.file, "file", "f", "", "file with records, instead of DOMAIN and flags")
	f.StringArrayVar(&o.regions, "region", nil, "an origin, REGION[:WEIGHT][=ADDRESS]; give one for each")
	f.StringArrayVar(&o.drained, "drained", nil, "a region of --region that takes no clients for now")
	f.IntVarP(&o.percentile, "percentile", "p", 50, "50, 90 or 99")
	f.Var(cli.NewDuration(&o.maxRTT, func(d time.Duration) error {
		if d > topology.MaxTableRTT {
			return fmt.Errorf("is more than %s", job.FormatDuration(topology.MaxTableRTT))
		}
		return nil
	}), "max-rtt", "do not choose origins farther than this, such as 80ms; 0s = any")
	f.IntVar(&o.relays, "relays", 2, "at most this many regions in between, 0 = none")
	f.BoolVar(&o.noGuesses, "no-guesses", false, "choose only by what was measured")
	f.Float64Var(&o.minGain, "min-relay-gain", topology.DefaultMinGain, "least share of the direct way that a relay must save")
	f.Int64Var(&o.check, "check-revision", 0, "fail unless the stored record has this revision; -1: unless the record does not exist")
	return c
}

// records returns the records of the file, or the one record that the flags describe.
func (o originOptions) records(c *cli.Session, args []string) ([]*nusav1.OriginRecord, error) {
	if o.file == "" {
		if len(args) == 0 || len(o.regions) == 0 {
			return nil, fmt.Errorf("give a domain and --region for each origin, or -f FILE; see %s --help", c.Cmd.CommandPath())
		}
		r, err := o.record(args[0])
		return []*nusav1.OriginRecord{r}, err
	}
	for _, name := range []string{"region", "drained", "percentile", "max-rtt", "relays", "no-guesses", "min-relay-gain"} {
		if len(args) > 0 || c.Cmd.Flags().Changed(name) {
			return nil, errors.New("give either -f FILE or a domain with its flags")
		}
	}
	data, err := c.ReadFile(o.file)
	if err != nil {
		return nil, err
	}
	records, err := job.ParseOrigins(data, o.file, nil)
	switch {
	case err != nil:
		return nil, err
	case o.check != 0 && len(records) > 1:
		return nil, fmt.Errorf("--check-revision is for one record, %s has %d", o.file, len(records))
	}
	// An unknown region is refused before the first record is sent.
	ctx, cancel := c.WithTimeout()
	defer cancel()
	regions, err := c.Regions().List(ctx, &nusav1.ListRegionsRequest{})
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, r := range regions.GetRegions() {
		names = append(names, r.GetDefinition().GetName())
	}
	return job.ParseOrigins(data, o.file, names)
}

func (o originOptions) record(domain string) (*nusav1.OriginRecord, error) {
	if err := history.CheckPercentile(o.percentile); err != nil {
		return nil, err
	}
	relays, err := relaysToProto(o.relays)
	if err != nil {
		return nil, err
	}
	if !(o.minGain >= 0 && o.minGain <= 1) {
		return nil, fmt.Errorf("--min-relay-gain: %g is not a share within 0..1", o.minGain)
	}
	r := &nusav1.OriginRecord{Domain: domain, Policy: &nusav1.OriginPolicy{Percentile: int32(o.percentile), MaxRelays: relays, NoGuesses: o.noGuesses, MinRelayGain: o.minGain}}
	if o.maxRTT > 0 {
		r.Policy.MaxRtt = durationpb.New(o.maxRTT)
	}
	if _, err := origin.ParsePattern(domain); err != nil {
		return nil, err
	}
	for _, text := range o.regions {
		one, err := parseOrigin(text)
		if err != nil {
			return nil, err
		}
		one.Drained = slices.Contains(o.drained, one.Region)
		r.Origins = append(r.Origins, one)
	}
	for _, d := range o.drained {
		if !slices.ContainsFunc(r.Origins, func(one *nusav1.Origin) bool { return one.Region == d }) {
			return nil, fmt.Errorf("--drained: %q is none of the regions given with --region", d)
		}
	}
	return r, job.ValidateOrigins(r)
}

// parseOrigin parses REGION[:WEIGHT][=ADDRESS].
func parseOrigin(text string) (*nusav1.Origin, error) {
	head, address, addressed := strings.Cut(text, "=")
	region, weight, weighed := strings.Cut(head, ":")
	o := &nusav1.Origin{Region: region, Address: address}
	if !job.ValidName(region) || addressed && address == "" {
		return nil, fmt.Errorf("--region: %q is not REGION[:WEIGHT][=ADDRESS], such as japaneast:2=203.0.113.7:443", text)
	}
	if weighed {
		w, err := strconv.ParseFloat(weight, 64)
		if err != nil || !(w >= origin.MinWeight && w <= origin.MaxWeight) {
			return nil, fmt.Errorf("--region: %q: the weight %q is not a number within %g..%g", text, weight, origin.MinWeight, origin.MaxWeight)
		}
		o.Weight = w
	}
	return o, nil
}

func setOrigins(c *cli.Session, records []*nusav1.OriginRecord, check int64) error {
	out := &nusav1.ListOriginsResponse{}
	for _, r := range records {
		r.Revision = 0 // an exported record has a revision; only --check-revision compares revisions
		ctx, cancel := c.WithTimeout()
		stored, err := c.Origins().Set(ctx, &nusav1.SetOriginsRequest{Record: r, Revision: check})
		cancel()
		if err != nil {
			return err
		}
		out.Records = append(out.Records, stored)
		if c.Output == "table" {
			c.Printf("%s is served by %s (revision %d)\n", stored.GetDomain(), originsText(stored), stored.GetRevision())
		}
	}
	return c.Print(out, func(*term.Screen) {})
}

// originsText lists the regions of a record. It shows a weight only if it is not 1.
func originsText(r *nusav1.OriginRecord) string {
	var parts []string
	for _, o := range r.GetOrigins() {
		text := o.GetRegion()
		if w := o.GetWeight(); w != 0 && w != 1 {
			text += ":" + term.Number(w)
		}
		if o.GetAddress() != "" {
			text += "=" + term.OneLine(o.GetAddress())
		}
		if o.GetDrained() {
			text += " (drained)"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

func originListCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the records of domains", Args: cli.Positional(),
		RunE: s.Run(func(c *cli.Session, _ []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := c.Origins().List(ctx, &nusav1.ListOriginsRequest{})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { writeOrigins(w, resp) })
		}),
	}
}

func writeOrigins(w *term.Screen, resp *nusav1.ListOriginsResponse) {
	if resp.GetAge().AsDuration() > 0 { // 0 means the present state
		fmt.Fprintf(w, "%s\n\n", w.Wait("as of the region's last contact with the global tier, "+term.Age(resp.GetAge())+" ago"))
	}
	if len(resp.GetRecords()) == 0 {
		fmt.Fprintf(w, "no records; store one with: %s origin set DOMAIN --region REGION\n", w.Program)
		return
	}
	t := term.NewTable("DOMAIN", "POLICY", ">REVISION", "ORIGINS")
	for _, r := range resp.GetRecords() {
		t.Row(r.GetDomain(), policyText(r.GetPolicy()), strconv.FormatInt(r.GetRevision(), 10), originsText(r))
	}
	t.Write(w)
}

// policyText lists how a policy differs from the default policy.
func policyText(p *nusav1.OriginPolicy) string {
	parts := []string{"nearest"}
	if n := p.GetPercentile(); n != 0 && n != 50 {
		parts[0] += fmt.Sprintf(" by p%d", n)
	}
	if d := p.GetMaxRtt().AsDuration(); d > 0 {
		parts = append(parts, "within "+job.FormatDuration(d))
	}
	switch n := p.GetMaxRelays(); {
	case n < 0:
		parts = append(parts, "no relays")
	case n > 0 && n != 2:
		parts = append(parts, fmt.Sprintf("up to %s", term.Plural(n, "relay")))
	}
	if g := p.GetMinRelayGain(); g > 0 && g != topology.DefaultMinGain {
		parts = append(parts, "relays that save "+term.Percent(g))
	}
	if p.GetNoGuesses() {
		parts = append(parts, "measured only")
	}
	return strings.Join(parts, ", ")
}

func originRemoveCommand(s *cli.Settings) *cobra.Command {
	var check int64
	c := &cobra.Command{
		Use: "remove DOMAIN", Aliases: []string{"rm"}, Short: "Remove the record of a domain", Args: cli.Positional("DOMAIN"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if _, err := origin.ParsePattern(args[0]); err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := c.Origins().Remove(ctx, &nusav1.RemoveOriginsRequest{Domain: args[0], Revision: check})
			if err != nil {
				return err
			}
			return c.Print(resp, func(w *term.Screen) { fmt.Fprintf(w, "the record of %s is removed\n", args[0]) })
		}),
	}
	c.Flags().Int64Var(&check, "check-revision", 0, "fail unless the stored record has this revision")
	return c
}
