package state

import "northstar/cluster"

// memberRecord is a cluster.Member with the methods of a payload: writing the
// whole record.
type memberRecord cluster.Member

func (m *memberRecord) encode(e *encoder) {
	e.string(16, string(m.ID))
	e.stringOpt(17, m.RaftAddress)
	e.stringOpt(18, m.HTTPAddress)
	e.uintOpt(19, uint64(m.Priority))
	e.boolOpt(20, m.Eligible)
	e.stringOpt(21, m.Zone)
	e.stringOpt(22, m.Incarnation)
	e.stringOpt(23, string(m.Lifecycle))
	e.stringOpt(24, m.Version)
	e.uintOpt(25, uint64(m.Reads))
	e.boolOpt(26, m.Removed)
}

func (m *memberRecord) decode(f field) error {
	switch f.num {
	case 16:
		return setString(f, &m.ID)
	case 17:
		return setString(f, &m.RaftAddress)
	case 18:
		return setString(f, &m.HTTPAddress)
	case 19:
		return setUint(f, &m.Priority)
	case 20:
		return setBool(f, &m.Eligible)
	case 21:
		return setString(f, &m.Zone)
	case 22:
		return setString(f, &m.Incarnation)
	case 23:
		return setString(f, &m.Lifecycle)
	case 24:
		return setString(f, &m.Version)
	case 25:
		return setUint(f, &m.Reads)
	case 26:
		return setBool(f, &m.Removed)
	}
	return nil
}

func (p *MemberPatch) encode(e *encoder) {
	e.string(16, string(p.ID))
	encodePtr(17, p.RaftAddress, e.string)
	encodePtr(18, p.HTTPAddress, e.string)
	encodePtr(19, p.Priority, func(n int, v int) { e.uint(n, uint64(v)) })
	encodePtr(20, p.Eligible, e.bool)
	encodePtr(21, p.Zone, e.string)
	encodePtr(22, p.Incarnation, e.string)
	encodePtr(23, p.Lifecycle, func(n int, v cluster.Lifecycle) { e.string(n, string(v)) })
	encodePtr(24, p.Version, e.string)
	encodePtr(25, p.SupportedVersion, func(n int, v uint32) { e.uint(n, uint64(v)) })
}

// encodePtr writes a field whose presence matters, also when it is zero.
func encodePtr[T any](num int, v *T, write func(int, T)) {
	if v != nil {
		write(num, *v)
	}
}

func (p *MemberPatch) decode(f field) error {
	switch f.num {
	case 16:
		return setString(f, &p.ID)
	case 17:
		return setNew(f, &p.RaftAddress, setString)
	case 18:
		return setNew(f, &p.HTTPAddress, setString)
	case 19:
		return setNew(f, &p.Priority, setUint)
	case 20:
		return setNew(f, &p.Eligible, setBool)
	case 21:
		return setNew(f, &p.Zone, setString)
	case 22:
		return setNew(f, &p.Incarnation, setString)
	case 23:
		return setNew(f, &p.Lifecycle, setString)
	case 24:
		return setNew(f, &p.Version, setString)
	case 25:
		return setNew(f, &p.SupportedVersion, setUint)
	}
	return nil
}

func (p *MemberRemove) encode(e *encoder) { e.string(16, string(p.ID)) }

func (p *MemberRemove) decode(f field) error {
	if f.num == 16 {
		return setString(f, &p.ID)
	}
	return nil
}
