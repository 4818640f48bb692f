package state

func (p *SessionCreate) encode(e *encoder) {
	e.stringOpt(16, p.Nonce)
	e.stringOpt(17, p.Name)
	e.uintOpt(18, uint64(p.TTL))
	encodeMetaData(e, 19, p.Meta)
}

func (p *SessionCreate) decode(f field) error {
	switch f.num {
	case 16:
		return setString(f, &p.Nonce)
	case 17:
		return setString(f, &p.Name)
	case 18:
		return setUint(f, &p.TTL)
	case 19:
		return decodeMetaData(f, &p.Meta)
	}
	return nil
}

// encodeMetaData writes one record for each entry, in order of names.
func encodeMetaData(e *encoder, num int, meta map[string]string) {
	for _, name := range sortedKeys(meta) {
		e.record(num, func(e *encoder) {
			e.string(1, name)
			e.string(2, meta[name])
		})
	}
}

func decodeMetaData(f field, meta *map[string]string) error {
	var name, value string
	err := eachField(f.raw, func(f field) error {
		switch f.num {
		case 1:
			return setString(f, &name)
		case 2:
			return setString(f, &value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if *meta == nil {
		*meta = make(map[string]string)
	}
	(*meta)[name] = value
	return nil
}

func (p *SessionEnd) encode(e *encoder) {
	for _, id := range p.IDs {
		e.string(16, id)
	}
	e.stringOpt(17, string(p.Cause))
}

func (p *SessionEnd) decode(f field) error {
	switch f.num {
	case 16:
		return appendString(f, &p.IDs)
	case 17:
		return setString(f, &p.Cause)
	}
	return nil
}

func (s *Session) encode(e *encoder) {
	e.string(1, s.ID)
	e.stringOpt(2, s.Name)
	e.uintOpt(3, uint64(s.TTL))
	encodeMetaData(e, 4, s.Meta)
	e.uintOpt(5, uint64(s.CreatedAt))
}

func (s *Session) decode(f field) error {
	switch f.num {
	case 1:
		return setString(f, &s.ID)
	case 2:
		return setString(f, &s.Name)
	case 3:
		return setUint(f, &s.TTL)
	case 4:
		return decodeMetaData(f, &s.Meta)
	case 5:
		return setUint(f, &s.CreatedAt)
	}
	return nil
}
