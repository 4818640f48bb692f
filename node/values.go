package node

import (
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"northstar/cluster"
)

// Size is a number of bytes, written as 64MiB, 10kB or 1048576.
type Size uint64

var (
	sizePattern = regexp.MustCompile(`^([0-9]+)\s*([A-Za-z]*)$`)
	sizeUnits   = map[string]uint64{
		"": 1, "B": 1,
		"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
		"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	}
)

// UnmarshalText reads a size.
func (s *Size) UnmarshalText(text []byte) error {
	m := sizePattern.FindStringSubmatch(string(text))
	if m == nil {
		return errors.New("must be a size such as 64MiB")
	}
	unit, ok := sizeUnits[m[2]]
	if !ok {
		return fmt.Errorf("unit must be B, kB, MB, GB, TB, KiB, MiB, GiB or TiB (got %q)", m[2])
	}
	n, err := strconv.ParseUint(m[1], 10, 64)
	high, low := bits.Mul64(n, unit)
	if err != nil || high != 0 {
		return errors.New("too large")
	}
	*s = Size(low)
	return nil
}

// String returns the size in the largest binary unit that divides it.
func (s Size) String() string {
	for _, u := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if n := sizeUnits[u]; s != 0 && uint64(s)%n == 0 {
			return strconv.FormatUint(uint64(s)/n, 10) + u
		}
	}
	return strconv.FormatUint(uint64(s), 10)
}

// Percent is a number of hundredths, written as 10% or 10.
type Percent int

// UnmarshalText reads a percentage.
func (p *Percent) UnmarshalText(text []byte) error {
	n, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(string(text), "%")))
	if err != nil {
		return errors.New("must be a percentage such as 10%")
	}
	*p = Percent(n)
	return nil
}

// String returns the percentage as UnmarshalText reads it.
func (p Percent) String() string { return strconv.Itoa(int(p)) + "%" }

// Silence is how long a leader may be silent, written as a duration; 0 is written as auto.
type Silence time.Duration

const autoSilence = "auto"

// UnmarshalText reads a silence.
func (s *Silence) UnmarshalText(text []byte) error {
	*s = 0
	if string(text) == autoSilence {
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil || d <= 0 {
		return errors.New("must be auto or a duration such as 60ms")
	}
	*s = Silence(d)
	return nil
}

// String returns the silence as UnmarshalText reads it.
func (s Silence) String() string {
	if s == 0 {
		return autoSilence
	}
	return time.Duration(s).String()
}

// InitialMember is one bootstrap member.
type InitialMember struct {
	ID          cluster.NodeID
	RaftAddress string
	HTTPAddress string
}

// InitialCluster is the bootstrap membership, written n1=RAFT@HTTP,n2=RAFT@HTTP.
type InitialCluster []InitialMember

// UnmarshalText reads a membership and returns every error in it.
func (c *InitialCluster) UnmarshalText(text []byte) error {
	*c = nil
	if strings.TrimSpace(string(text)) == "" {
		return nil
	}
	var errs []error
	for _, part := range strings.Split(string(text), ",") {
		m, err := parseInitialMember(strings.TrimSpace(part))
		errs = append(errs, err)
		*c = append(*c, m)
	}
	return errors.Join(errs...)
}

func parseInitialMember(s string) (InitialMember, error) {
	name, addresses, ok := strings.Cut(s, "=")
	raftAddr, httpAddr, ok2 := strings.Cut(addresses, "@")
	if !ok || !ok2 {
		return InitialMember{}, fmt.Errorf("each member must be ID=RAFT_HOST:PORT@HTTP_HOST:PORT (got %q)", s)
	}
	id, err := cluster.ParseNodeID(name)
	return InitialMember{ID: id, RaftAddress: raftAddr, HTTPAddress: httpAddr},
		errors.Join(err, checkAdvertise(raftAddr), checkAdvertise(httpAddr))
}

// String returns the membership as UnmarshalText reads it.
func (c InitialCluster) String() string {
	parts := make([]string, len(c))
	for i, m := range c {
		parts[i] = fmt.Sprintf("%s=%s@%s", m.ID, m.RaftAddress, m.HTTPAddress)
	}
	return strings.Join(parts, ",")
}

// check returns IDs and addresses that occur twice.
func (c InitialCluster) check() error {
	var errs []error
	ids, addresses := map[cluster.NodeID]bool{}, map[string]cluster.NodeID{}
	for _, m := range c {
		if ids[m.ID] {
			errs = append(errs, fmt.Errorf("duplicate node ID %s", m.ID))
		}
		ids[m.ID] = true
		for _, a := range []string{m.RaftAddress, m.HTTPAddress} {
			if other, ok := addresses[a]; ok {
				errs = append(errs, fmt.Errorf("duplicate address %s, at %s and %s", a, other, m.ID))
			}
			addresses[a] = m.ID
		}
	}
	return errors.Join(errs...)
}

// find returns the member with that ID.
func (c InitialCluster) find(id cluster.NodeID) (InitialMember, bool) {
	for _, m := range c {
		if m.ID == id {
			return m, true
		}
	}
	return InitialMember{}, false
}

// checkListen checks a listen address: the host may be missing, the port may be 0.
func checkListen(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return errors.New("must be HOST:PORT")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port must be 0 to 65535 (got %q)", port)
	}
	return nil
}

// hostName matches what may be a host name. Names of containers may have an underscore.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]{0,252})$`)

// checkAdvertise checks an address that other nodes dial.
func checkAdvertise(addr string) error {
	if err := checkListen(addr); err != nil {
		return fmt.Errorf("address %q: %w", addr, err)
	}
	host, port, _ := net.SplitHostPort(addr)
	if host == "" {
		return fmt.Errorf("address %q: host missing: other nodes cannot connect to it", addr)
	}
	ip, err := netip.ParseAddr(host)
	if err == nil && (ip.IsUnspecified() || ip.IsMulticast()) {
		return fmt.Errorf("address %q: other nodes cannot dial %s", addr, host)
	}
	if err != nil && !hostName.MatchString(host) {
		return fmt.Errorf("address %q: host must be an IP address, or a name of letters, digits, '.', '-' and '_' (got %q)",
			addr, host)
	}
	if n, _ := strconv.Atoi(port); n == 0 {
		return fmt.Errorf("address %q: other nodes cannot dial port 0", addr)
	}
	return nil
}
