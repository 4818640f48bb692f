package state

func (p *AppNodePut) encode(e *encoder) { e.record(16, p.Node.encode) }

func (p *AppNodePut) decode(f field) error {
	if f.num == 16 {
		return eachField(f.raw, p.Node.decode)
	}
	return nil
}

func (p *AppNodeRemove) encode(e *encoder) {
	for _, id := range p.IDs {
		e.string(16, id)
	}
	e.uintOpt(17, uint64(p.DeadSince))
}

func (p *AppNodeRemove) decode(f field) error {
	switch f.num {
	case 16:
		return appendString(f, &p.IDs)
	case 17:
		return setUint(f, &p.DeadSince)
	}
	return nil
}

func (n *AppNode) encode(e *encoder) {
	e.string(1, n.ID)
	e.stringOpt(2, n.Session)
	e.stringOpt(3, n.Hostname)
	e.stringOpt(4, n.Address)
	e.uintOpt(5, uint64(n.HTTPPort))
	e.uintOpt(6, uint64(n.GRPCPort))
	for _, r := range n.Roles {
		e.string(7, r)
	}
	for _, c := range n.Capabilities {
		e.string(8, c)
	}
	e.stringOpt(9, n.Version)
	e.stringOpt(10, string(n.Status))
	e.uintOpt(11, uint64(n.RegisteredAt))
	e.uintOpt(12, uint64(n.ChangedAt))
	e.uintOpt(13, n.Revision)
}

func (n *AppNode) decode(f field) error {
	switch f.num {
	case 1:
		return setString(f, &n.ID)
	case 2:
		return setString(f, &n.Session)
	case 3:
		return setString(f, &n.Hostname)
	case 4:
		return setString(f, &n.Address)
	case 5:
		return setUint(f, &n.HTTPPort)
	case 6:
		return setUint(f, &n.GRPCPort)
	case 7:
		return appendString(f, &n.Roles)
	case 8:
		return appendString(f, &n.Capabilities)
	case 9:
		return setString(f, &n.Version)
	case 10:
		return setString(f, &n.Status)
	case 11:
		return setUint(f, &n.RegisteredAt)
	case 12:
		return setUint(f, &n.ChangedAt)
	case 13:
		return setUint(f, &n.Revision)
	}
	return nil
}
